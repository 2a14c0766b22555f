"""What vendors' libraries choose (algorithm, protocol, channels, tiles), and what it costs."""

"""A page in the browser over the commands: fields become a form, every change asks the command again."""

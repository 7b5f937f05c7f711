# Runs the command in QUORATE_COMMAND, or else a shell.
# No login shell: /etc/profile of many images replaces the PATH that the image itself sets.
SHELL=$(command -v bash || echo /bin/sh)
export SHELL
cd "$HOME" 2>/dev/null || cd /
if [ -n "$QUORATE_COMMAND" ]; then
    command=$QUORATE_COMMAND
    unset QUORATE_COMMAND
    exec "$SHELL" -c "$command"
fi
exec "$SHELL"

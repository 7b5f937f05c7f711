# Starts Jupyter in a rental, unless it runs, and prints its token: sh -s TOKEN PORT
set -e
folder=$HOME/.quorate
umask 077
mkdir -p "$folder"
if test -s "$folder/jupyter.pid" && kill -0 "$(cat "$folder/jupyter.pid")" 2>/dev/null; then
    cat "$folder/jupyter.token"
    exit 0
fi
for program in jupyter-lab jupyter-notebook ''; do
    test -z "$program" || ! command -v "$program" >/dev/null || break
done
# An image or `pip install --user` may have the package without its programs.
for module in jupyterlab jupyter_server; do
    test -z "$program" || break
    python3 -c "import $module" 2>/dev/null && program="python3 -m $module"
done
if test -z "$program"; then
    echo "the image has no jupyter" >&2
    exit 44
fi
echo "$1" >"$folder/jupyter.token"
# The end of this connection hangs up, and must not end it.
trap '' HUP
JUPYTER_TOKEN=$1 $program --allow-root --no-browser --ip=127.0.0.1 --port="$2" \
    --ServerApp.port_retries=0 --notebook-dir="$HOME" \
    </dev/null >"$folder/jupyter.log" 2>&1 &
echo $! >"$folder/jupyter.pid"
cat "$folder/jupyter.token"

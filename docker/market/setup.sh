#!/bin/sh
# Makes contracts, keys for all parties, and money from the faucet: `setup.sh NET EXECUTOR`. Steps
# that were done are skipped. The same commands make a market on separate machines
# (docs/howto/operator.md).
set -eu
umask 077

net="$1" executor="$2"
facts=/market/facts/devnet.json
passphrase=/market/secrets/passphrase
coordinator="http://$net.0.4:7700"

[ -s "$passphrase" ] || head -c 24 /dev/urandom | base64 >"$passphrase"
export QUORATE_PASSWORD_FILE="$passphrase"
quorate devnet deploy --chain-url "http://$net.0.2:8545" --beacon-url "http://$net.0.3:8546" --out "$facts"
if [ -e /market/facts/funded ]; then
    exit 0
fi
quorate coordinator init --deployment "$facts" --host 0.0.0.0 --public-url "$coordinator" --metrics-from "$net.0.0/16" \
    --home /market/coordinator
number=0
for name in a b c; do
    number=$((number + 1))
    quorate node init --coordinator "$coordinator" --limits devnet --executor "$executor" --price 3.60 --slots 2 --stake 200 \
        --host 0.0.0.0 --public-url "http://$net.$number.2:7710" --home "/market/provider-$name"
done
[ -e /market/client/client.json ] || quorate --home /market/client init --coordinator "$coordinator" --limits devnet
quorate devnet fund --dir /market/facts /market/coordinator /market/provider-a /market/provider-b /market/provider-c /market/client
touch /market/facts/funded

// Command gopeer is a libp2p and IPFS peer for Quorate's interoperability tests.
//
// It is built from go-libp2p and boxo only, so it stands for the network that others run. A test
// starts it, reads one JSON line with its addresses, and controls it over loopback HTTP. It ends
// when its standard input ends.
package main

import (
	"context"
	"crypto/ed25519"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/p2p/security/noise"
	"github.com/libp2p/go-libp2p/p2p/transport/tcp"
)

// started is the line that a test reads.
type started struct {
	ID        string   `json:"id"`
	Addresses []string `json:"addresses"` // with /p2p/<id>
	Control   string   `json:"control"`   // base URL of the commands in control.go
	Gateway   string   `json:"gateway"`   // base URL of the trustless gateway, without /ipfs
}

func main() {
	seed := flag.String("seed", "", "32 bytes in hex: the Ed25519 secret of the peer's key")
	limited := flag.Bool("limited", false, "use go-libp2p's default resource limits")
	port := flag.Int("port", 0, "the TCP port on loopback; 0 is any free one")
	flag.Parse()
	if err := run(*seed, *limited, *port); err != nil {
		fmt.Fprintln(os.Stderr, "gopeer:", err)
		os.Exit(1)
	}
}

func run(seed string, limited bool, port int) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	node, err := newHost(seed, limited, port)
	if err != nil {
		return err
	}
	defer node.Close()
	content, err := newContent(ctx, node)
	if err != nil {
		return err
	}
	gossip, err := newGossip(ctx, node)
	if err != nil {
		return err
	}
	serveStreams(node)
	greeter := &greeter{}
	greeter.serve(node)
	gateway, err := listen(content.gateway)
	if err != nil {
		return err
	}
	control, err := listen(commands(node, content, gossip, greeter))
	if err != nil {
		return err
	}
	line := started{ID: node.ID().String(), Control: control, Gateway: gateway}
	for _, address := range node.Addrs() {
		line.Addresses = append(line.Addresses, fmt.Sprintf("%s/p2p/%s", address, node.ID()))
	}
	if err := json.NewEncoder(os.Stdout).Encode(line); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// newHost makes a host with noise and yamux over TCP on loopback.
func newHost(seed string, limited bool, port int) (host.Host, error) {
	options := []libp2p.Option{
		libp2p.ListenAddrStrings(fmt.Sprintf("/ip4/127.0.0.1/tcp/%d", port)),
		libp2p.Transport(tcp.NewTCPTransport),
		libp2p.Security(noise.ID, noise.New),
		libp2p.DisableRelay(),
	}
	if !limited {
		options = append(options, libp2p.ResourceManager(&network.NullResourceManager{}))
	}
	if seed != "" {
		key, err := keyOf(seed)
		if err != nil {
			return nil, err
		}
		options = append(options, libp2p.Identity(key))
	}
	return libp2p.New(options...)
}

func keyOf(seed string) (crypto.PrivKey, error) {
	raw, err := hex.DecodeString(seed)
	if err != nil {
		return nil, err
	}
	if len(raw) != ed25519.SeedSize {
		return nil, errors.New("-seed must have 32 bytes")
	}
	return crypto.UnmarshalEd25519PrivateKey(ed25519.NewKeyFromSeed(raw))
}

// listen serves a handler on a free loopback port and returns its base URL.
func listen(handler http.Handler) (string, error) {
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	go func() { _ = http.Serve(socket, handler) }() // ends with the process
	return "http://" + socket.Addr().String(), nil
}

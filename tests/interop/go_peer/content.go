package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"time"

	"github.com/ipfs/boxo/bitswap"
	"github.com/ipfs/boxo/bitswap/network/bsnet"
	"github.com/ipfs/boxo/blockservice"
	"github.com/ipfs/boxo/blockstore"
	chunk "github.com/ipfs/boxo/chunker"
	"github.com/ipfs/boxo/exchange/offline"
	"github.com/ipfs/boxo/gateway"
	"github.com/ipfs/boxo/ipld/merkledag"
	"github.com/ipfs/boxo/ipld/unixfs/importer/balanced"
	"github.com/ipfs/boxo/ipld/unixfs/importer/helpers"
	unixfs "github.com/ipfs/boxo/ipld/unixfs/io"
	"github.com/ipfs/go-cid"
	"github.com/ipfs/go-datastore"
	"github.com/ipfs/go-datastore/sync"
	format "github.com/ipfs/go-ipld-format"
	"github.com/ipld/go-car/v2"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/multiformats/go-multihash"
)

// The layout of the IPFS profile unixfs-v1-2025.
const (
	chunkBytes    = 1 << 20
	linksMax      = 1024
	searchSeconds = 30 // as long as a Kubo searches
)

// content is a blockstore in memory, with bitswap to connected peers and a trustless gateway.
type content struct {
	blocks  blockservice.BlockService // asks peers by bitswap for what it lacks
	dag     format.DAGService         // over blocks
	gateway http.Handler
}

// received is what was read of a file.
type received struct {
	Bytes   int64   `json:"bytes"`
	SHA256  string  `json:"sha256"`
	Seconds float64 `json:"seconds"`
}

func newContent(ctx context.Context, node host.Host) (*content, error) {
	store := blockstore.NewBlockstore(sync.MutexWrap(datastore.NewMapDatastore()))
	exchange := bitswap.New(ctx, bsnet.NewFromIpfsHost(node), nil, store)
	blocks := blockservice.New(store, exchange)
	backend, err := gateway.NewBlocksBackend(blocks)
	if err != nil {
		return nil, err
	}
	config := gateway.Config{RetrievalTimeout: searchSeconds * time.Second}
	dag := merkledag.NewDAGService(blocks)
	return &content{blocks, dag, gateway.NewHandler(config, backend)}, nil
}

// add stores a file and returns its CID.
func (c *content) add(ctx context.Context, data io.Reader) (cid.Cid, error) {
	parameters := helpers.DagBuilderParams{
		Maxlinks:   linksMax,
		RawLeaves:  true,
		CidBuilder: cid.V1Builder{Codec: cid.DagProtobuf, MhType: multihash.SHA2_256},
		Dagserv:    c.dag,
	}
	builder, err := parameters.New(chunk.NewSizeSplitter(data, chunkBytes))
	if err != nil {
		return cid.Undef, err
	}
	root, err := balanced.Layout(builder)
	if err != nil {
		return cid.Undef, err
	}
	return root.Cid(), nil
}

// importCAR stores the blocks of a CAR and returns its root.
func (c *content) importCAR(ctx context.Context, data io.Reader) (cid.Cid, error) {
	reader, err := car.NewBlockReader(data)
	if err != nil {
		return cid.Undef, err
	}
	for {
		block, err := reader.Next()
		if err == io.EOF {
			return reader.Roots[0], nil
		}
		if err == nil {
			err = c.blocks.AddBlock(ctx, block)
		}
		if err != nil {
			return cid.Undef, err
		}
	}
}

// fetch reads a file, which peers send by bitswap, and keeps its blocks.
func (c *content) fetch(ctx context.Context, root cid.Cid) (received, error) {
	return readFile(ctx, root, merkledag.NewReadOnlyDagService(merkledag.NewSession(ctx, c.dag)))
}

// readRemote reads a file from another gateway: one request for each block, each one verified.
func readRemote(ctx context.Context, root cid.Cid, url string) (received, error) {
	remote, err := gateway.NewRemoteBlockstore([]string{url}, nil)
	if err != nil {
		return received{}, err
	}
	store := blockstore.NewIdStore(remote)
	blocks := blockservice.New(store, offline.Exchange(store))
	return readFile(ctx, root, merkledag.NewDAGService(blocks))
}

func readFile(ctx context.Context, root cid.Cid, dag format.DAGService) (received, error) {
	begun := time.Now()
	node, err := dag.Get(ctx, root)
	if err != nil {
		return received{}, err
	}
	file, err := unixfs.NewDagReader(ctx, node, dag)
	if err != nil {
		return received{}, err
	}
	hash := sha256.New()
	count, err := io.Copy(hash, file)
	if err != nil {
		return received{}, err
	}
	sum := hex.EncodeToString(hash.Sum(nil))
	return received{count, sum, time.Since(begun).Seconds()}, nil
}

// addBytes is add for what a request's body holds.
func (c *content) addBytes(ctx context.Context, data []byte) (cid.Cid, error) {
	return c.add(ctx, bytes.NewReader(data))
}

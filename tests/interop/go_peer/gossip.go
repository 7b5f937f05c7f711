package main

import (
	"context"
	"errors"
	"sync"

	pubsub "github.com/libp2p/go-libp2p-pubsub"
	"github.com/libp2p/go-libp2p/core/host"
)

const messagesMax = 100_000 // kept for each topic

// message is one gossip message that arrived.
type message struct {
	From string `json:"from"` // the signer's peer id
	Via  string `json:"via"`  // the neighbour that sent it
	Data []byte `json:"data"` // base64 in JSON
}

type topic struct {
	joined   *pubsub.Topic
	messages []message
}

// gossip is gossipsub with strict signatures.
type gossip struct {
	router *pubsub.PubSub
	guard  sync.Mutex
	topics map[string]*topic
}

func newGossip(ctx context.Context, node host.Host) (*gossip, error) {
	policy := pubsub.WithMessageSignaturePolicy(pubsub.StrictSign)
	router, err := pubsub.NewGossipSub(ctx, node, policy)
	if err != nil {
		return nil, err
	}
	return &gossip{router: router, topics: map[string]*topic{}}, nil
}

// join subscribes to a topic. A second call does nothing.
func (g *gossip) join(name string) error {
	g.guard.Lock()
	defer g.guard.Unlock()
	if g.topics[name] != nil {
		return nil
	}
	joined, err := g.router.Join(name)
	if err != nil {
		return err
	}
	subscription, err := joined.Subscribe(pubsub.WithBufferSize(1024))
	if err != nil {
		return err
	}
	found := &topic{joined: joined}
	g.topics[name] = found
	go g.collect(found, subscription)
	return nil
}

func (g *gossip) collect(into *topic, subscription *pubsub.Subscription) {
	for {
		next, err := subscription.Next(context.Background())
		if err != nil {
			return
		}
		arrived := message{next.GetFrom().String(), next.ReceivedFrom.String(), next.Data}
		g.guard.Lock()
		if len(into.messages) < messagesMax {
			into.messages = append(into.messages, arrived)
		}
		g.guard.Unlock()
	}
}

func (g *gossip) publish(ctx context.Context, name string, data []byte) error {
	g.guard.Lock()
	found := g.topics[name]
	g.guard.Unlock()
	if found == nil {
		return errors.New("join the topic first")
	}
	return found.joined.Publish(ctx, data)
}

// peers returns the neighbours that take the topic's messages.
func (g *gossip) peers(name string) []string {
	ids := []string{}
	for _, id := range g.router.ListPeers(name) {
		ids = append(ids, id.String())
	}
	return ids
}

// received returns a topic's messages from the given one on.
func (g *gossip) received(name string, from int) []message {
	g.guard.Lock()
	defer g.guard.Unlock()
	found := g.topics[name]
	if found == nil || from < 0 || from >= len(found.messages) {
		return []message{}
	}
	return append([]message{}, found.messages[from:]...)
}

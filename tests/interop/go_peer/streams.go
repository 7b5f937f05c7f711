package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"sync"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
)

// A message on a stream is 4 bytes of length, big-endian, and the message.
const (
	echoProtocol    = protocol.ID("/quorate/echo/1")
	peersProtocol   = protocol.ID("/quorate/peers/1")
	messageBytesMax = 16 << 20
)

// serveStreams answers each message on an echo stream with the same message.
func serveStreams(node host.Host) {
	node.SetStreamHandler(echoProtocol, func(stream network.Stream) {
		for {
			data, err := readMessage(stream)
			if err == nil {
				err = writeMessage(stream, data)
			}
			if err == io.EOF {
				_ = stream.Close()
				return
			}
			if err != nil {
				_ = stream.Reset()
				return
			}
		}
	})
}

// A message on a peers' stream, after the hello, is a kind, 16 bytes of id, and a frame.
const (
	requestKind = 1
	answerKind  = 2
	headBytes   = 17
)

// greeter serves peers' streams. It sends `welcome` after a hello, which it does not check.
type greeter struct {
	guard   sync.Mutex
	welcome []byte
}

func (g *greeter) set(welcome []byte) {
	g.guard.Lock()
	defer g.guard.Unlock()
	g.welcome = welcome
}

func (g *greeter) serve(node host.Host) {
	node.SetStreamHandler(peersProtocol, func(stream network.Stream) {
		g.guard.Lock()
		welcome := g.welcome
		g.guard.Unlock()
		_, err := readMessage(stream)
		if err == nil {
			err = writeMessage(stream, welcome)
		}
		if err != nil {
			_ = stream.Reset()
			return
		}
		answerRequests(stream)
	})
}

// answerRequests answers each request with its own frame, until the stream ends.
func answerRequests(stream network.Stream) {
	for {
		message, err := readMessage(stream)
		if err != nil || len(message) < headBytes || message[0] != requestKind {
			_ = stream.Reset()
			return
		}
		message[0] = answerKind
		if err = writeMessage(stream, message); err != nil {
			_ = stream.Reset()
			return
		}
	}
}

// converse opens a stream, sends each message after the answer to the one before, and returns the
// answers: fewer than messages if the other side ended the stream. With `keep` it answers requests
// on the stream afterwards.
func converse(
	ctx context.Context, node host.Host, to peer.ID, name string, messages [][]byte, keep bool,
) ([][]byte, error) {
	stream, err := node.NewStream(ctx, to, protocol.ID(name))
	if err != nil {
		return nil, err
	}
	answers := [][]byte{}
	for _, message := range messages {
		if err = writeMessage(stream, message); err != nil {
			break
		}
		answer, err := readMessage(stream)
		if err != nil {
			break
		}
		answers = append(answers, answer)
	}
	if keep && len(answers) == len(messages) {
		go answerRequests(stream)
		return answers, nil
	}
	return answers, stream.Close()
}

// send opens a stream and writes bytes that need not be a message.
func send(ctx context.Context, node host.Host, to peer.ID, name string, data []byte) error {
	stream, err := node.NewStream(ctx, to, protocol.ID(name))
	if err != nil {
		return err
	}
	if _, err = stream.Write(data); err != nil {
		return err
	}
	return stream.CloseWrite()
}

// exchange opens a stream, sends the message `count` times and returns the last answer.
func exchange(
	ctx context.Context, node host.Host, to peer.ID, name string, data []byte, count int,
) ([]byte, error) {
	stream, err := node.NewStream(ctx, to, protocol.ID(name))
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	if deadline, ok := ctx.Deadline(); ok {
		_ = stream.SetDeadline(deadline)
	}
	var answer []byte
	for range count {
		if err = writeMessage(stream, data); err != nil {
			return nil, err
		}
		if answer, err = readMessage(stream); err != nil {
			return nil, err
		}
	}
	return answer, nil
}

func readMessage(from io.Reader) ([]byte, error) {
	var length uint32
	if err := binary.Read(from, binary.BigEndian, &length); err != nil {
		return nil, err
	}
	if length > messageBytesMax {
		return nil, fmt.Errorf("a message of %d bytes; at most %d", length, messageBytesMax)
	}
	data := make([]byte, length)
	_, err := io.ReadFull(from, data)
	return data, err
}

func writeMessage(to io.Writer, data []byte) error {
	framed := binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(data)), uint32(len(data)))
	_, err := to.Write(append(framed, data...))
	return err
}

package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
)

// A message on a stream is 4 bytes of length, big-endian, and the message.
const (
	echoProtocol    = protocol.ID("/quorate/echo/1")
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

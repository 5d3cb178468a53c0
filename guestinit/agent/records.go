package agent

import (
	"context"
	"encoding/json"

	"github.com/sietch-dev/sietch/guestinit/proto"
)

// serveRecords answers with the frames that send sends, and its error. Its
// context ends when the client goes.
func (c *conn) serveRecords(send func(context.Context, *proto.FrameWriter) error) bool {
	if _, err := c.nc.Write(appendUpgrade(nil, proto.UpgradeRecords)); err != nil {
		return false
	}
	ctx, cancel := context.WithCancel(c.s.ctx)
	defer cancel()
	done := make(chan bool, 1)
	go func() { // ends with the client's last frame, or the connection
		ok := awaitDone(proto.NewFrameReader(c.br))
		if !ok {
			cancel()
			abort(c.nc) // a send may be blocked
		}
		done <- ok
	}()
	fw := proto.NewFrameWriter(c.nc)
	err := send(ctx, fw)
	if ctx.Err() != nil {
		abort(c.nc)
		<-done
		return false
	}
	var body []byte
	if err != nil {
		body = appendError(nil, errorCode(err), err.Error())
	}
	if fw.Send(proto.FrameEnd, body) != nil {
		abort(c.nc)
	}
	return <-done
}

// awaitDone skips what the client sends up to its last frame, and reports
// whether it came.
func awaitDone(fr *proto.FrameReader) bool {
	for {
		t, _, err := fr.Next()
		if err != nil {
			return false
		}
		if t == proto.FrameDone {
			return true
		}
	}
}

func sendRecord(fw *proto.FrameWriter, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return fw.Send(proto.FrameRecord, b)
}

func (c *conn) okJSON(v any) bool {
	b, err := json.Marshal(v)
	if err != nil {
		return c.fail(err)
	}
	return c.ok(b)
}

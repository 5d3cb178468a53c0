package agent

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/sietch-dev/sietch/guestinit/proto"
)

// records asks for a stream of records and hands each frame on. An error of
// each ends the stream and is returned as it is.
func (c *Client) records(ctx context.Context, path string, req any, each func(proto.FrameType, []byte) error) error {
	done, err := c.enter()
	if err != nil {
		return err
	}
	defer done()
	k, err := c.openStream(ctx, path, proto.UpgradeRecords, req, c.o.Dial)
	if err != nil {
		return err
	}
	fr := proto.NewFrameReader(k.br)
	for {
		t, payload, err := fr.Next()
		if err != nil {
			c.giveUp(k)
			return c.broken(ctx, eofInside(err))
		}
		if t != proto.FrameEnd {
			if err := each(t, payload); err != nil {
				c.giveUp(k)
				return err
			}
			continue
		}
		c.closeStream(k, &gate{})
		if len(payload) == 0 {
			return nil
		}
		var e proto.ErrorBody
		if err := json.Unmarshal(payload, &e); err != nil {
			return fmt.Errorf("%w: end of stream: %w", proto.ErrFrame, err)
		}
		return &RemoteError{e.Code, e.Message}
	}
}

// unexpected is the error for a frame that a stream has no use for.
func unexpected(t proto.FrameType) error {
	return fmt.Errorf("%w: unexpected frame %q", proto.ErrFrame, byte(t))
}

// record decodes a FrameRecord.
func record(t proto.FrameType, payload []byte, v any) error {
	if t != proto.FrameRecord {
		return unexpected(t)
	}
	if err := json.Unmarshal(payload, v); err != nil {
		return fmt.Errorf("%w: record: %w", proto.ErrFrame, err)
	}
	return nil
}

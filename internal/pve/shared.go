package pve

import (
	"context"
	"encoding/json"
)

// getShared is get for what is the same whoever asks for it: many VMs are looked at
// at once, and who asks while another's request is on its way has its answer. None
// is kept: what came since a plan was made has to be seen. An error is nobody
// else's: whoever waited for the answer asks himself.
func (c *Client) getShared(ctx context.Context, path string, out any) error {
	mine := false
	answer := c.shared.DoChan(path, func() (any, error) {
		mine = true
		var raw json.RawMessage
		err := c.get(ctx, path, &raw)
		return raw, err
	})
	select {
	case a := <-answer:
		switch raw, _ := a.Val.(json.RawMessage); {
		case a.Err == nil:
			return json.Unmarshal(raw, out)
		case mine:
			return a.Err
		}
		return c.get(ctx, path, out)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

package factory

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
)

// maxErrorText is how much of an error page is read.
const maxErrorText = 8 << 10

// ISOURL is where the factory serves a boot ISO, built once somebody asks for it.
func (c *Client) ISOURL(req images.ISORequest) string {
	return c.base.JoinPath("image", req.SchematicID, req.Talos, req.Platform+"-"+req.Arch+suffix(req)+".iso").String()
}

// ISO asks for a boot ISO. There is no HEAD before it: the factory would build the image for that, too.
func (c *Client) ISO(ctx context.Context, req images.ISORequest) (io.ReadCloser, int64, error) {
	link := c.ISOURL(req)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, link, nil)
	if err != nil {
		return nil, 0, fmt.Errorf("ask for %s: %w", link, err)
	}
	resp, err := c.http.Do(r)
	if err != nil {
		return nil, 0, c.unreachable(err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp.Body, resp.ContentLength, nil
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxErrorText))
	if err != nil {
		text = nil // the status says enough
	}
	_ = resp.Body.Close() // nothing more is wanted of it
	err = c.status(resp.StatusCode, string(text))
	if resp.StatusCode == http.StatusNotFound {
		err = fault.WithHint(err, "the factory does not know Talos %s or schematic %s", req.Talos, req.SchematicID)
	}
	return nil, 0, err
}

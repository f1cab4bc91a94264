package factory

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
)

// tellEvery is how often a long build is reported.
const tellEvery = 30 * time.Second

// ISOURL is where the factory serves a boot ISO, which it builds on the first request.
func (c *Client) ISOURL(req images.ISORequest) string {
	return c.base.JoinPath("image", req.SchematicID, req.Talos, req.Platform+"-"+req.Arch+suffix(req)+".iso").String()
}

// ISO requests a boot ISO. No HEAD comes first: the factory would build the image for that, too.
func (c *Client) ISO(ctx context.Context, req images.ISORequest, note func(string)) (io.ReadCloser, int64, error) {
	note = serialize(note)
	open := func(after time.Duration) (io.ReadCloser, int64, error) {
		if err := pause(ctx, after); err != nil {
			return nil, 0, c.unreachable(err)
		}
		return c.openISO(ctx, req, note)
	}
	body, size, err := c.openISO(ctx, req, note)
	if err != nil {
		return nil, 0, err
	}
	return &download{open: open, note: note, explain: c.unreachable, body: body, size: size, sum: sha256.New()}, size, nil
}

func (c *Client) openISO(ctx context.Context, req images.ISORequest, note func(string)) (io.ReadCloser, int64, error) {
	defer reportEvery(note, "the factory is building the ISO")()
	var resp *http.Response
	err := retry(ctx, asset, note, func() (err error) {
		resp, err = c.send(ctx, request{method: http.MethodGet, link: c.ISOURL(req), within: buildTimeout})
		return err
	})
	if err != nil {
		return nil, 0, c.explainMissing(err, req)
	}
	return resp.Body, resp.ContentLength, nil
}

func (c *Client) explainMissing(err error, req images.ISORequest) error {
	if !hasStatus(err, http.StatusNotFound) {
		return err
	}
	if e, ok := errors.AsType[*Error](err); ok && strings.Contains(e.Message, unknownSchematic) {
		return fault.WithHint(err, "the factory no longer knows the schematic: `recast build` registers it again")
	}
	return fault.WithHint(err, "the factory does not know Talos %s: %s/versions lists what it builds", req.Talos, c.base)
}

// serialize makes note safe for several goroutines; nil becomes a no-op.
func serialize(note func(string)) func(string) {
	if note == nil {
		return func(string) {}
	}
	var telling sync.Mutex
	return func(text string) {
		telling.Lock()
		defer telling.Unlock()
		note(text)
	}
}

// reportEvery reports every tellEvery how long something takes, until it is stopped.
func reportEvery(note func(string), what string) (stop func()) {
	begun, over := time.Now(), make(chan struct{})
	var telling sync.WaitGroup
	telling.Go(func() {
		ticker := time.NewTicker(tellEvery)
		defer ticker.Stop()
		for {
			select {
			case <-over:
				return
			case <-ticker.C:
				note(fmt.Sprintf("%s, %s", what, time.Since(begun).Round(time.Second)))
			}
		}
	})
	return func() { close(over); telling.Wait() }
}

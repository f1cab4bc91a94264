package pve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// getShared is get for what is the same whoever asks for it: many VMs are looked at
// at once, and who asks while another's request is on its way has its answer. None
// is kept: what came since a plan was made has to be seen. An error is nobody
// else's: whoever waited for the answer asks himself.
func (c *Client) getShared(ctx context.Context, path string, out any) error {
	_, err := c.getSharedDated(ctx, path, out)
	return err
}

// dated is an answer, and what time it was by the clock of the host that gave it.
type dated struct {
	raw json.RawMessage
	at  time.Time
}

// getSharedDated is getShared, with the time that the answer bears; zero where a
// proxy in front of Proxmox has taken it away.
func (c *Client) getSharedDated(ctx context.Context, path string, out any) (at time.Time, err error) {
	mine := false
	answer := c.shared.DoChan(path, func() (any, error) {
		mine = true
		var d dated
		var err error
		d.at, err = c.getDated(ctx, path, &d.raw)
		return d, err
	})
	select {
	case a := <-answer:
		switch d, _ := a.Val.(dated); {
		case a.Err == nil:
			return d.at, json.Unmarshal(d.raw, out)
		case mine:
			return time.Time{}, a.Err
		}
		return c.getDated(ctx, path, out)
	case <-ctx.Done():
		return time.Time{}, context.Cause(ctx)
	}
}

// getDated is get, with the time that the answer bears; zero where there is none.
func (c *Client) getDated(ctx context.Context, path string, out any) (time.Time, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+path, http.NoBody)
	if err != nil {
		return time.Time{}, err
	}
	req.Header.Set("Authorization", c.auth)
	req.Header.Set("User-Agent", userAgent)
	resp, err := c.http.Do(req)
	if err != nil {
		return time.Time{}, c.clean(http.MethodGet, path, err)
	}
	answer := struct {
		Data any `json:"data"`
	}{out}
	if err := errors.Join(json.NewDecoder(resp.Body).Decode(&answer), resp.Body.Close()); err != nil {
		return time.Time{}, fmt.Errorf("GET %s: read the answer: %w", path, err)
	}
	date, err := http.ParseTime(resp.Header.Get("Date"))
	if err != nil {
		return time.Time{}, nil
	}
	return date, nil
}

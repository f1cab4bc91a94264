package factory

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
)

// Error is an answer of the factory that says no.
type Error struct {
	Factory string // its URL
	Status  int    // of HTTP
	Message string // the factory's own words; may be empty
}

func (e *Error) Error() string {
	text := fmt.Sprintf("image factory %s: %d %s", e.Factory, e.Status, http.StatusText(e.Status))
	if e.Message != "" {
		text += ": " + e.Message
	}
	return text
}

func hasStatus(err error, status int) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Status == status
}

func (c *Client) status(status int, message string) error {
	err := error(&Error{Factory: c.base.String(), Status: status, Message: strings.TrimSpace(message)})
	switch status {
	case http.StatusBadRequest:
		return fault.As(fault.Config, err)
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusPaymentRequired:
		return fault.WithHint(err, "this factory, or this part of it, is for its customers only")
	case http.StatusInternalServerError:
		return fault.WithHint(err, "the reason is in the factory's own log; a malformed Talos version is one")
	}
	return err
}

func (c *Client) unreachable(err error) error {
	err = fmt.Errorf("image factory %s: %w", c.base, err)
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return fault.WithHint(err, "see whether images.factory in recast.yaml is right and reachable from here")
}

package factory

import (
	"context"
	"errors"
	"fmt"
	"html"
	"io"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/trust"
)

// Error is an answer other than success.
type Error struct {
	Factory string // its URL
	Via     string // the host that it redirected to, if that one answered
	Status  int    // of HTTP
	Message string // the server's message; may be empty

	retryAfter time.Duration // requested by the server; 0: none
}

func (e *Error) Error() string {
	text := "image factory " + e.Factory + ": "
	if e.Via != "" {
		text += "redirected to " + e.Via + ": "
	}
	text += e.status()
	if e.Message != "" {
		text += ": " + e.Message
	}
	return text
}

// status is "503 Service Unavailable"; proxies' own numbers have no name.
func (e *Error) status() string {
	return strings.TrimSpace(fmt.Sprintf("%d %s", e.Status, http.StatusText(e.Status)))
}

func hasStatus(err error, status int) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Status == status
}

// refusal returns an error for an answer that is not a success.
func (s *server) refusal(resp *http.Response) error {
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxErrorText))
	if err != nil {
		text = nil // the status says enough
	}
	e := &Error{Factory: s.base.String(), Status: resp.StatusCode, Message: message(text), retryAfter: retryAfter(resp)}
	if host := resp.Request.URL.Host; host != s.base.Host {
		e.Via = host
	}
	if resp.StatusCode < http.StatusMultipleChoices {
		e.Message = strings.TrimSuffix("a web page instead of an answer: "+e.Message, ": ")
		return fault.WithHint(fault.Unreachable.Of(e), "see whether images.factory in recast.yaml is an Image Factory, and what proxy is in between")
	}
	return e.hinted()
}

// hinted adds a remedy. See image-factory, internal/frontend/http/http.go, MatchError.
func (e *Error) hinted() error {
	switch e.Status {
	case http.StatusBadRequest:
		err := fault.As(fault.Config, error(e))
		switch {
		case strings.Contains(e.Message, "official extension"):
			return fault.WithHint(fault.ExtensionUnknown.Of(err), "see `recast lock`: it names the extensions that there are for a Talos version")
		case strings.Contains(e.Message, "secure boot is disabled"):
			return fault.WithHint(fault.BuildFailed.Of(err), "this factory has no keys for Secure Boot: set images.secureBoot to false, or name another factory in images.factory")
		}
		return err
	case http.StatusUnauthorized:
		return fault.WithHint(fault.BuildFailed.Of(e), "this factory, or a proxy before it, requires a login, which recast does not have")
	case http.StatusForbidden:
		return fault.WithHint(fault.BuildFailed.Of(e), "the schematic belongs to someone else, or a proxy denies access from here")
	case http.StatusPaymentRequired:
		return fault.WithHint(fault.BuildFailed.Of(e), "this is for customers of the Enterprise edition only")
	case http.StatusInternalServerError:
		return fault.WithHint(fault.BuildFailed.Of(e), "the reason is in the factory's own log; a malformed Talos version is one, a registry that it can't reach another")
	case http.StatusTooManyRequests:
		return fault.WithHint(fault.BuildFailed.Of(e), "the factory limits how often it answers: wait a while")
	}
	return e
}

var (
	tags  = regexp.MustCompile(`<[^>]*>`)
	title = regexp.MustCompile(`(?is)<(?:title|message)[^>]*>(.*?)</`) // of HTML; of S3's XML errors
	noise = regexp.MustCompile(`(?is)<(?:style|script|head)\b.*?</(?:style|script|head)>|<!--.*?-->`)
)

// maxPage bounds the text shown of a page.
const maxPage = 200

// message returns the text; of a web page, its title or the beginning of its text.
func message(text []byte) string {
	s := strings.TrimSpace(string(text))
	if strings.HasPrefix(s, "<") {
		if m := title.FindStringSubmatch(s); m != nil {
			s = m[1]
		} else {
			s = noise.ReplaceAllString(s, " ")
		}
		s = strings.Join(strings.Fields(html.UnescapeString(tags.ReplaceAllString(s, " "))), " ")
		if r := []rune(s); len(r) > maxPage {
			s = string(r[:maxPage]) + "…"
		}
	}
	return foreign.Line(s)
}

// unreachable wraps an error on the way to the factory or back.
func (s *server) unreachable(err error) error {
	err = fmt.Errorf("image factory %s: %w", s.base, foreign.Error(err))
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if explained, ok := trust.Explain(err); ok {
		return explained
	}
	return fault.WithHint(fault.Unreachable.Of(err), "see whether images.factory in recast.yaml is right and reachable from here")
}

// foreign wraps an answer that no Image Factory gives.
func (s *server) foreign(err error) error {
	return fault.WithHint(fmt.Errorf("image factory %s: %w", s.base, foreign.Error(err)), "see whether images.factory in recast.yaml is an Image Factory")
}

package factory

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/recast-sh/recast/internal/transport"
)

const (
	attempts    = 5 // with pauses of 1, 2, 4 and 8 s
	attempts500 = 3 // of the factory's own "internal server error", which may be for good
	maxPause    = 2 * time.Minute
	// buildTimeout is how long a build may take: the factory gives up after 20
	// minutes, including the wait for a worker (image-factory,
	// internal/asset/asset.go).
	buildTimeout = 25 * time.Minute
	// unknownPause is the pause after a newly registered schematic is unknown: each of
	// several factories caches for 30 s that it did not exist (image-factory,
	// cmd/options.go, NegativeTTL).
	unknownPause = 10 * time.Second
	// unknownSchematic distinguishes that from an unknown version (image-factory, internal/schematic/storage).
	unknownSchematic = "schematic ID"
)

// purpose is the purpose of a request, which decides what is worth a retry.
type purpose int

const (
	api   purpose = iota // lists and schematics
	asset                // an image, which may have to be built first
)

// permanent marks an error that a retry would not fix.
type permanent struct{ error }

func (p permanent) Unwrap() error { return p.error }

// retry retries ask while its error may be temporary. All our requests are
// repeatable: those other than GET register a schematic, whose ID is its content's
// hash.
func retry(ctx context.Context, e purpose, note func(string), ask func() error) error {
	start := time.Now()
	counted := 0 // attempts, except those during which the factory is still building
	for {
		err := ask()
		if err == nil || ctx.Err() != nil {
			return err
		}
		if e == asset && gaveUpWaiting(err) && time.Since(start) < buildTimeout {
			note(fmt.Sprintf("%s; the factory is still building, asking again in %s", summary(err), unknownPause))
			if err := transport.Pause(ctx, unknownPause); err != nil {
				return err
			}
			continue
		}
		counted++
		inAll, wait := retryPolicy(err, e, counted)
		if counted >= inAll || wait > maxPause {
			if counted > 1 {
				return fmt.Errorf("%w (asked %d times)", err, counted)
			}
			return err
		}
		note(fmt.Sprintf("%s, trying again in %s (%d of %d)", summary(err), wait, counted+1, inAll))
		if err := transport.Pause(ctx, wait); err != nil {
			return err
		}
	}
}

// retryPolicy returns how many attempts an error is worth, and how long to wait after this one.
func retryPolicy(err error, e purpose, attempt int) (attemptsInAll int, wait time.Duration) {
	wait = time.Second << (attempt - 1)
	answer, ok := errors.AsType[*Error](err)
	if !ok {
		if isConfigError(err) {
			return 1, 0
		}
		return attempts, wait
	}
	wait = max(wait, answer.retryAfter)
	switch status := answer.Status; {
	case status == http.StatusNotFound && e == asset && strings.Contains(answer.Message, unknownSchematic):
		return attempts, unknownPause
	case status == http.StatusInternalServerError && answer.Via == "":
		return attempts500, wait
	case status == http.StatusRequestTimeout, status == http.StatusTooManyRequests,
		status == http.StatusBadGateway, status == http.StatusServiceUnavailable, status == http.StatusGatewayTimeout,
		status == http.StatusInternalServerError, status >= 520 && status <= 524: // Cloudflare's
		return attempts, wait
	}
	return 1, 0
}

// gaveUpWaiting reports whether a proxy timed out during a build, which continues.
func gaveUpWaiting(err error) bool {
	return hasStatus(err, http.StatusGatewayTimeout) || hasStatus(err, 524)
}

// isConfigError reports whether an error on the way to the factory is due to the configuration.
func isConfigError(err error) bool {
	if _, ok := errors.AsType[permanent](err); ok {
		return true
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return true
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return true
	}
	dns, ok := errors.AsType[*net.DNSError](err)
	return ok && dns.IsNotFound || errors.Is(err, http.ErrSchemeMismatch)
}

// summary summarises what went wrong.
func summary(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		if e.Via != "" {
			return e.Via + " answered " + e.status()
		}
		return "the factory answered " + e.status()
	}
	return "no complete answer from the factory (" + innermost(err) + ")"
}

func innermost(err error) string {
	for next := errors.Unwrap(err); next != nil; next = errors.Unwrap(err) {
		err = next
	}
	return err.Error()
}

// retryAfter is how long the server asks to wait: in seconds, or until a time.
func retryAfter(resp *http.Response) time.Duration {
	text := resp.Header.Get("Retry-After")
	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(0, time.Until(at)).Round(time.Second)
	}
	return 0
}

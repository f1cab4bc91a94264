package factory

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/images/verify"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/factoryapi"
)

// TestISORebuiltDuringDownload: after a break the factory has other bytes, or another number of them.
func TestISORebuiltDuringDownload(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 500)
	cases := map[string]string{"other bytes": "b" + long[1:], "more of them": long + "a"}
	eachInBubble(t, cases, func(t *testing.T, second string) {
		requests := 0
		c := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			requests++
			if requests > 1 {
				_, _ = io.WriteString(w, second)
				return
			}
			w.Header().Set("Content-Length", "500")
			_, _ = io.WriteString(w, long[:300])
		}))
		body, _, err := c.ISO(t.Context(), isoRequest, nil)
		noError(t, err)
		got, err := io.ReadAll(body)
		if err == nil || !strings.HasSuffix(err.Error(), "after the download broke off, the factory sends another ISO than before") || string(got) != long[:300-heldBack] {
			t.Errorf("%d bytes, error = %v", len(got), err)
		}
		if _, err := body.Read(make([]byte, 1)); err == nil {
			t.Error("the error is gone")
		}
		noError(t, body.Close())
	})
}

// TestUnannouncedSize: a proxy that forwards an ISO in chunks, and breaks once.
func TestUnannouncedSize(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const iso = "the first half, the second half"
		requests := 0
		c := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			requests++
			_, _ = io.WriteString(w, iso[:15])
			noError(t, http.NewResponseController(w).Flush())
			if requests == 1 {
				panic(http.ErrAbortHandler)
			}
			_, _ = io.WriteString(w, iso[15:])
		}))
		body, size, err := c.ISO(t.Context(), isoRequest, nil)
		noError(t, err)
		got, err := io.ReadAll(body)
		if err := errors.Join(err, body.Close()); err != nil || string(got) != iso || size != -1 || requests != 2 {
			t.Errorf("%q of %d bytes after %d requests, %v", got, size, requests, err)
		}
	})
}

// TestCancelledDownload: the caller ends it, so nothing is retried.
func TestCancelledDownload(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		req := s.agents(t)
		if _, err := s.fetch(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		s.factory.Strike(100, "/image/", factoryapi.Stall(cutAt))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		start := time.Now()
		_, err := s.fetch(ctx, req)
		if took := time.Since(start); !errors.Is(err, context.DeadlineExceeded) || took != 10*time.Second || len(s.notes) > 0 || len(fault.Hints(err)) > 0 {
			t.Errorf("after %s: %v, hints %q, notes %q", took, err, fault.Hints(err), s.notes)
		}
	})
}

// TestOldContentUnderANewLabel: someone asks a stale factory for the new schematic's
// installer. It is built from the old extension, and served for ever, even by a
// restarted factory with the new list.
func TestOldContentUnderANewLabel(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.relock(t) // the factory has read its list now
		_, is, err := s.catalog.Patch(t.Context(), talos, "qemu-guest-agent")
		noError(t, err)
		s.relock(t)
		e := s.lock.Schematics["default"]
		if _, _, err := s.client.Register(t.Context(), e.Schematic); err != nil {
			t.Fatal(err)
		}
		noError(t, s.client.BuildInstaller(t.Context(), images.RequestOf(s.lock, e), nil))
		s.factory.Restart()

		err = s.build(t)
		m, ok := errors.AsType[*verify.Mismatch](err)
		if !ok || m.Kind != verify.ExtensionContent || fault.KindOf(err) != fault.Refused {
			t.Fatalf("err = %v", err)
		}
		for _, want := range []string{
			"build/default/verify-installer: installer: extension \"qemu-guest-agent\" ", " is not the locked one (" + is + "): 1 file differs: ",
		} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("error\n got %v\nwant it to hold %q", err, want)
			}
		}
		if hints := strings.Join(fault.Hints(err), "; "); !strings.Contains(hints, "serves an installer for ever") || !strings.Contains(hints, "recast lock --rebuild") {
			t.Errorf("hint = %q", hints)
		}
		if got := s.lock.Schematics["default"]; got.Installer != "" || got.ISO.SHA256 != "" {
			t.Errorf("recorded despite the error: %q %+v", got.Installer, got.ISO)
		}
		t.Attr("corruptions-caught", "1")

		// The factory keeps serving it under that name. Under another it has nothing yet.
		if err := s.build(t); fault.KindOf(err) != fault.Refused {
			t.Errorf("the same again: %v", err)
		}
		s.relock(t, "default")
		if got := s.lock.Schematics["default"]; got.Rebuild != 1 || got.SchematicID == e.SchematicID || cmp.Diff(e.Extensions, got.Extensions) != "" {
			t.Fatalf("locked for a rebuild: %+v", got)
		}
		noError(t, s.build(t))
		s.holds(t, s.lock.Schematics["default"])
	})
}

package factory

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/images/verify"
	"github.com/recast-sh/recast/internal/diskimage"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/factoryapi"
	"github.com/recast-sh/recast/internal/sim/must"
)

// agents registers a schematic and returns the request for its ISO.
func (s *site) agents(t *testing.T) images.ISORequest {
	t.Helper()
	id, _, err := s.client.Register(t.Context(), "customization: {systemExtensions: {officialExtensions: [siderolabs/qemu-guest-agent]}}\n")
	must.Do(t, err)
	return images.ISORequest{SchematicID: id, Talos: talos, Platform: "nocloud", Arch: "amd64"}
}

// fetch downloads an ISO.
func (s *site) fetch(ctx context.Context, req images.ISORequest) ([]byte, error) {
	return s.fetchOf(ctx, images.BootISO, req)
}

func (s *site) fetchOf(ctx context.Context, of images.Artefact, req images.ISORequest) ([]byte, error) {
	body, size, err := s.client.Image(ctx, of, req, s.note)
	if err != nil {
		return nil, err
	}
	iso, err := io.ReadAll(body)
	if err == nil && int64(len(iso)) != size {
		err = fmt.Errorf("%d bytes, announced were %d", len(iso), size)
	}
	return iso, errors.Join(err, body.Close())
}

const (
	cutAt = 1000
	first = "(unexpected EOF), beginning again in 1s (2 of 5)"
	off   = "the download broke off after 0 MiB "
)

// isoTrouble is what goes wrong on the way to an ISO that is downloaded in the end, and what the user is told.
type isoTrouble struct {
	troubles []factoryapi.Trouble
	notes    []string
	took     time.Duration
}

func isoTroubles() map[string]isoTrouble {
	again := func(what, wait, n string) string { return what + ", trying again in " + wait + " (" + n + ")" }
	const failing, unknown = "the factory answered 500 Internal Server Error", "the factory answered 404 Not Found"
	return map[string]isoTrouble{
		"none":                {nil, nil, 0},
		"a cut":               {[]factoryapi.Trouble{factoryapi.Cut(cutAt)}, []string{off + first}, time.Second},
		"a cut at the start":  {[]factoryapi.Trouble{factoryapi.Cut(0)}, []string{off + first}, time.Second},
		"its store breaks":    {[]factoryapi.Trouble{factoryapi.CutByStore(cutAt)}, []string{off + first}, time.Second},
		"its store, at first": {[]factoryapi.Trouble{factoryapi.CutByStore(0)}, []string{off + first}, time.Second},
		"a cut, and one before it": {
			[]factoryapi.Trouble{factoryapi.Cut(cutAt), factoryapi.Cut(10)},
			[]string{off + first, off + "(unexpected EOF), beginning again in 2s (3 of 5)"},
			3 * time.Second,
		},
		"a cut, and a proxy": {
			[]factoryapi.Trouble{factoryapi.Cut(cutAt), factoryapi.Down(502, 0)},
			[]string{off + first, again("the factory answered 502 Bad Gateway", "1s", "2 of 5")},
			2 * time.Second,
		},
		"a stall": {
			[]factoryapi.Trouble{factoryapi.Stall(cutAt)},
			[]string{off + "(nothing came for 1m0s), beginning again in 1s (2 of 5)"},
			61 * time.Second,
		},
		"its own, twice": {
			[]factoryapi.Trouble{factoryapi.Failing(), factoryapi.Failing()},
			[]string{again(failing, "1s", "2 of 3"), again(failing, "2s", "3 of 3")},
			3 * time.Second,
		},
		"another factory that has not heard yet": {
			[]factoryapi.Trouble{factoryapi.Unaware(), factoryapi.Unaware()},
			[]string{again(unknown, "10s", "2 of 5"), again(unknown, "10s", "3 of 5")},
			20 * time.Second,
		},
	}
}

// TestISOTrouble: whatever happens, the bytes are those of an undisturbed download, and the factory builds them once.
func TestISOTrouble(t *testing.T) {
	t.Parallel()
	eachInBubble(t, isoTroubles(), func(t *testing.T, tc isoTrouble) {
		s := newSite(t)
		req := s.agents(t)
		want, err := s.fetch(t.Context(), req)
		if err != nil || len(want) <= 2*cutAt {
			t.Fatal(len(want), err)
		}
		for _, trouble := range tc.troubles {
			s.factory.Strike(1, "/image/", trouble)
		}
		start := time.Now()
		got, err := s.fetch(t.Context(), req)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes, want %d; %v", len(got), len(want), err)
		}
		must.Equal(t, "took", tc.took, time.Since(start))
		s.said(t, tc.notes, nil, "", "")
		s.built(t, "iso "+req.SchematicID+" v1.13.9 nocloud-amd64")
	})
}

func (s *site) built(t *testing.T, want ...string) {
	t.Helper()
	must.Equal(t, "built", want, s.factory.Built())
}

// TestSlowBuild: a build that takes ten minutes, seen directly and through a proxy that waits for one.
func TestSlowBuild(t *testing.T) {
	t.Parallel()
	eachInBubble(t, map[string]bool{"directly": false, "behind a proxy": true}, func(t *testing.T, impatient bool) {
		s := newSite(t)
		req := s.agents(t)
		s.factory.Slow(10 * time.Minute)
		if impatient {
			s.factory.Strike(100, "/image/", s.factory.Impatient(time.Minute))
		}
		start := time.Now()
		must.Get(s.fetch(t.Context(), req))(t)
		if took := time.Since(start); took < 10*time.Minute || took > 11*time.Minute {
			t.Errorf("took %s", took)
		}
		const still = "the factory answered 504 Gateway Timeout; the factory is still building, asking again in 10s"
		told, gaveUp := 0, 0
		for _, n := range s.notes {
			switch {
			case strings.HasPrefix(n, "the factory is building the ISO, "):
				told++
			case n == still:
				gaveUp++
			default:
				t.Errorf("note: %s", n)
			}
		}
		if told != 20 || impatient != (gaveUp == 8) || s.notes[len(s.notes)-1] != "the factory is building the ISO, 10m0s" {
			t.Errorf("reported the build %d times, the proxy %d times: %q", told, gaveUp, s.notes)
		}
		s.built(t, "iso "+req.SchematicID+" v1.13.9 nocloud-amd64")
	})
}

// TestISOFails: which ISOs are not downloaded, and what the user is told.
func TestISOFails(t *testing.T) {
	t.Parallel()
	const who = "image factory http://" + addr + ": "
	type row struct {
		trouble factoryapi.Trouble
		err     string
		hint    string
		took    time.Duration
	}
	eachInBubble(t, map[string]row{
		"cut off for ever": {
			factoryapi.Cut(cutAt), who + "the download broke off 5 times, at last after 0 MiB: unexpected EOF",
			"see whether images.factory in recast.yaml is right and reachable from here", 15 * time.Second,
		},
		"stalled for ever": {
			factoryapi.Stall(cutAt), who + "the download broke off 5 times, at last after 0 MiB: nothing came for 1m0s",
			"see whether images.factory in recast.yaml is right and reachable from here", 15*time.Second + 5*time.Minute,
		},
		"unknown for ever": {
			factoryapi.Unaware(), `404 Not Found: schematic ID "`,
			"the factory no longer knows the schematic: `recast publish --only build` registers it again", 40 * time.Second,
		},
	}, func(t *testing.T, tc row) {
		s := newSite(t)
		req := s.agents(t)
		must.Get(s.fetch(t.Context(), req))(t)
		s.factory.Strike(100, "/image/", tc.trouble)
		start := time.Now()
		_, err := s.fetch(t.Context(), req)
		must.Contain(t, "error", fmt.Sprint(err), tc.err)
		must.Equal(t, "hint", tc.hint, strings.Join(fault.Hints(err), "; "))
		must.Equal(t, "took", tc.took, time.Since(start))
	})
}

// TestRedirectToStore: a factory with its own store redirects clients there, with a new signed URL for each attempt.
func TestRedirectToStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const store = "127.0.0.1:8081"
		s := newSite(t, func(o *factoryapi.Options) { o.Store = "http://" + store })
		req := s.agents(t)
		breaks := 0
		if err := listen(t, s.network, store, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			must.Equal(t, "credentials for another host", "", r.Header.Get("Authorization")+r.Header.Get("Cookie"))
			switch breaks++; breaks {
			case 1:
				factoryapi.Cut(cutAt)(w, r, s.factory.Store())
			case 2:
				factoryapi.Down(503, 0)(w, r, nil)
			default:
				s.factory.Store().ServeHTTP(w, r)
			}
		})); err != nil {
			t.Fatal(err)
		}
		iso, err := s.fetch(t.Context(), req)
		if err != nil || len(iso) < cutAt || breaks != 3 {
			t.Errorf("%d bytes from %d requests, %v", len(iso), breaks, err)
		}
		s.said(t, []string{off + first, store + " answered 503 Service Unavailable, trying again in 1s (2 of 5)"}, nil, "", "")
		s.built(t, "iso "+req.SchematicID+" v1.13.9 nocloud-amd64")

		resp, err := s.client.send(t.Context(), request{method: http.MethodGet, link: "http://" + store + "/abc?X-Amz-Signature=old", within: time.Minute})
		if err == nil {
			t.Fatal(resp.Status)
		}
		const want = "image factory http://" + addr + ": redirected to " + store +
			": 403 Forbidden: The request signature we calculated does not match the signature you provided. Check your key and signing method."
		must.Equal(t, "error", want, err.Error())
	})
}

// TestISOPath: the requested path, with GET only: a HEAD builds the image without sending it.
func TestISOPath(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var asked []string
		c := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			asked = append(asked, r.Method+" "+r.URL.Path)
		}))
		for _, req := range []images.ISORequest{
			isoRequest, {SchematicID: "abc", Talos: "v1.13.9", Platform: "metal", Arch: "arm64", SecureBoot: true},
		} {
			body, size, err := c.Image(t.Context(), images.BootISO, req, nil)
			if err != nil || size != 0 {
				t.Fatal(size, err)
			}
			must.Do(t, body.Close())
		}
		want := []string{"GET /image/abc/v1.13.9/nocloud-amd64.iso", "GET /image/abc/v1.13.9/metal-arm64-secureboot.iso"}
		must.Equal(t, "asked", want, asked)
	})
}

// TestNothingIsBuiltUnasked: only requests for an ISO, or an installer's manifest, start a build.
func TestNothingIsBuiltUnasked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		req := s.agents(t)
		ctx := t.Context()
		_, errVersions := s.client.Versions(ctx)
		_, errBroken := s.client.Broken(ctx)
		_, errExtensions := s.client.Extensions(ctx, talos)
		_, errKnows := s.client.Knows(ctx, req.SchematicID)
		_, errKey := s.client.SigningKey(ctx)
		must.Do(t, errors.Join(errVersions, errBroken, errExtensions, errKnows, errKey))
		if s.client.ImageURL(images.BootISO, req) == "" || s.client.InstallerRepository(req) == "" {
			t.Error("no names")
		}
		s.built(t)
		must.Do(t, s.client.BuildInstaller(ctx, req, nil))
		s.built(t, "installer "+req.SchematicID+" v1.13.9 nocloud")
	})
}

// TestDisk: a disk image of a schematic, with its values of META; a broken download is
// continued, and the factory builds it once.
func TestDisk(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		id, _, err := s.client.Register(t.Context(), "customization: {extraKernelArgs: [recast.lock=sha256-1], meta: [{key: 12, value: x}]}\n")
		must.Do(t, err)
		req := images.ISORequest{SchematicID: id, Talos: talos, Platform: "nocloud", Arch: "amd64"}
		want := must.Get(s.fetchOf(t.Context(), images.DiskImage, req))(t)
		s.factory.Strike(1, "/image/", factoryapi.Cut(cutAt))
		start := time.Now()
		got, err := s.fetchOf(t.Context(), images.DiskImage, req)
		if err != nil || !bytes.Equal(got, want) || time.Since(start) != time.Second {
			t.Errorf("%d bytes, want %d, after %s; %v", len(got), len(want), time.Since(start), err)
		}
		s.said(t, []string{off + first}, nil, "", "")
		s.built(t, "disk "+id+" v1.13.9 nocloud-amd64")
		disk := must.Get(diskimage.Open(bytes.NewReader(got), int64(len(got))))(t)
		values := []diskimage.Value{{Key: 0xc, Value: "x"}, {Key: 0x11, Value: "dual-boot"}}
		if len(disk.Meta) != 2 || disk.Meta[0] != values[0] || disk.Meta[1] != values[1] || !disk.BIOS {
			t.Errorf("META %v, BIOS %t", disk.Meta, disk.BIOS)
		}
		if disk.ESP.UKI.Talos != talos || !bytes.Contains([]byte(disk.ESP.UKI.Cmdline), []byte(" recast.lock=sha256-1")) {
			t.Errorf("Talos %s, arguments %q", disk.ESP.UKI.Talos, disk.ESP.UKI.Cmdline)
		}
		link := s.client.base.String() + "/image/" + id + "/v1.13.9/nocloud-amd64.qcow2"
		must.Equal(t, "URL", link, s.client.ImageURL(images.DiskImage, req))
	})
}

// TestDiskRebuilt: a disk image that was built again has other bytes.
func TestDiskRebuilt(t *testing.T) {
	t.Parallel()
	d := &download{what: made[images.DiskImage].title, explain: func(err error) error { return err }}
	err := d.differs()
	must.Equal(t, "error", "after the download broke off, the factory sends another disk image than before", fmt.Sprint(err))
	must.Equal(t, "hints", 1, len(fault.Hints(err)))
}

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
		body, _, err := c.Image(t.Context(), images.BootISO, isoRequest, nil)
		must.Do(t, err)
		got, err := io.ReadAll(body)
		if err == nil || !strings.HasSuffix(err.Error(), "after the download broke off, the factory sends another ISO than before") || string(got) != long[:300-heldBack] {
			t.Errorf("%d bytes, error = %v", len(got), err)
		}
		if _, err := body.Read(make([]byte, 1)); err == nil {
			t.Error("the error is gone")
		}
		must.Do(t, body.Close())
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
			if err := http.NewResponseController(w).Flush(); err != nil {
				t.Error(err)
			}
			if requests == 1 {
				panic(http.ErrAbortHandler)
			}
			_, _ = io.WriteString(w, iso[15:])
		}))
		body, size, err := c.Image(t.Context(), images.BootISO, isoRequest, nil)
		must.Do(t, err)
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
		must.Get(s.fetch(t.Context(), req))(t)
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
		must.Do(t, err)
		s.relock(t)
		e := s.lock.Schematics["default"]
		if _, _, err := s.client.Register(t.Context(), e.Schematic); err != nil {
			t.Fatal(err)
		}
		must.Do(t, s.client.BuildInstaller(t.Context(), images.RequestOf(s.lock, e), nil))
		s.factory.Restart()

		err = s.build(t)
		m, ok := errors.AsType[*verify.Mismatch](err)
		if !ok || m.Kind != verify.ExtensionContent || fault.KindOf(err) != fault.Refused {
			t.Fatalf("err = %v", err)
		}
		for _, want := range []string{
			"build/default/verify-installer: installer: extension \"qemu-guest-agent\" ", " is not the locked one (" + is + "): 1 file differs: ",
		} {
			must.Contain(t, "error", fmt.Sprint(err), want)
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
		must.Do(t, s.build(t))
		s.holds(t, s.lock.Schematics["default"])
	})
}

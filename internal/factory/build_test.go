package factory

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/images/verify"
	"github.com/recast-sh/recast/internal/diskimage"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/registry"
	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/factoryapi"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/network"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/transport"
	"github.com/recast-sh/recast/schematics"
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
		must.Hold(t, err == nil && bytes.Equal(got, want), "%d bytes, want %d; %v", len(got), len(want), err)
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
		took := time.Since(start)
		must.Hold(t, took >= 10*time.Minute && took <= 11*time.Minute, "took %s", took)
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
		must.Hold(t, err == nil && len(iso) >= cutAt && breaks == 3, "%d bytes from %d requests, %v", len(iso), breaks, err)
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
		must.Hold(t, s.client.ImageURL(images.BootISO, req) != "" && s.client.InstallerRepository(req) != "", "no names")
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
		must.Hold(t, err == nil && bytes.Equal(got, want) && time.Since(start) == time.Second,
			"%d bytes, want %d, after %s; %v", len(got), len(want), time.Since(start), err)
		s.said(t, []string{off + first}, nil, "", "")
		s.built(t, "disk "+id+" v1.13.9 nocloud-amd64")
		disk := must.Get(diskimage.Open(bytes.NewReader(got), int64(len(got))))(t)
		values := []diskimage.Value{{Key: 0xc, Value: "x"}, {Key: 0x11, Value: "dual-boot"}}
		must.Hold(t, len(disk.Meta) == 2 && disk.Meta[0] == values[0] && disk.Meta[1] == values[1] && disk.BIOS,
			"META %v, BIOS %t", disk.Meta, disk.BIOS)
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
			must.Pass(t, http.NewResponseController(w).Flush())
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

// TestOldContentUnderANewLabel: someone asks a stale factory for the new schematic's installer. It is built from the
// old extension, and served for ever, even by a restarted factory with the new list.
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
		must.Be(t, ok && m.Kind == verify.ExtensionContent && fault.KindOf(err) == fault.Refused, "err = %v", err)
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

const (
	registryAddr = "127.0.0.1:5000"
	talos        = "v1.13.9"
)

// site is a simulated factory and registry with their adapters, all in one bubble.
type site struct {
	factory  *factoryapi.Factory
	catalog  factoryapi.Catalog
	client   *Client
	registry *registry.Client
	recorder *record.Recorder
	network  *network.Network
	notes    []string
	cache    string
	lock     schematics.Lock // the file
}

func newSite(t *testing.T, with ...func(*factoryapi.Options)) *site {
	t.Helper()
	n := network.Memory()
	s := &site{recorder: record.New(), network: n, cache: filepath.Join(t.TempDir(), "iso")}
	oci := factoryapi.NewRegistry(s.recorder)
	s.catalog = factoryapi.Catalog{Registry: registryAddr, Transport: oci.Transport()}
	must.Do(t, s.catalog.Publish(t.Context(), talos, factoryapi.Official()))
	o := factoryapi.Options{
		URL: "http://" + addr, Registry: registryAddr, Transport: oci.Transport(), Versions: []string{talos}, Recorder: s.recorder, Delay: transport.Pause,
	}
	for _, set := range with {
		set(&o)
	}
	s.factory = must.Get(factoryapi.New(o))(t)
	must.Do(t, errors.Join(listen(t, n, addr, s.factory), listen(t, n, registryAddr, oci)))
	transport := func() http.RoundTripper { return &http.Transport{DialContext: n.Dialer().DialContext} }
	s.client = must.Get(New(Options{URL: "http://" + addr, Transport: transport(), Note: s.note}))(t)
	s.registry = must.Get(registry.New(registry.Options{
		Extensions: registryAddr + "/siderolabs/extensions", Transport: transport(), Keychain: authn.NewMultiKeychain(),
	}))(t)
	t.Cleanup(func() {
		must.Do(t, errors.Join(s.client.Close(), s.registry.Close()))
		s.factory.Close()
	})
	return s
}

func (s *site) note(text string) { s.notes = append(s.notes, text) }

// listen serves a handler until the test ends.
func listen(t *testing.T, n *network.Network, at string, h http.Handler) error {
	l, err := n.Listen(at)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: h}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(l) }) // ends with Close
	t.Cleanup(func() {
		must.Do(t, server.Close())
		serving.Wait()
	})
	return nil
}

// relock resolves one schematic against what is published now, to be rebuilt if it is named.
func (s *site) relock(t *testing.T, rebuild ...string) ([]schematics.Warning, []schematics.Change) {
	t.Helper()
	old := s.lock
	lock, warnings, err := schematics.Resolve(t.Context(), schematics.Request{
		Talos: talos, Arch: "amd64", Platform: "nocloud", Old: &old, Update: true,
		Files: map[string]schematics.File{"default": {
			Path: "base.yaml", Data: []byte("customization: {systemExtensions: {officialExtensions: [siderolabs/qemu-guest-agent, siderolabs/iscsi-tools]}}\n"),
			Rebuild: slices.Contains(rebuild, "default"),
		}},
	}, schematics.Sources{Catalog: s.registry, Images: s.registry, Factory: s.client})
	must.Do(t, err)
	s.lock = lock
	return warnings, schematics.Compare(old, lock)
}

func (s *site) build(t *testing.T) error {
	t.Helper()
	verifier := verify.New(s.registry, s.cache)
	defer func() {
		must.Do(t, verifier.Close())
	}()
	b := images.Builder{
		Factory: s.client, Registry: s.registry, Puller: s.registry, Verifier: verifier, Signature: images.SignaturePolicy{Mode: images.SignatureRequire},
		Cache:  images.NewCache(s.cache),
		Ledger: images.NewLedger(s.lock, func(l schematics.Lock) error { s.lock = l; return nil }),
	}
	return new(step.Runner).Run(t.Context(), b.Step())
}

// iso reads the content of the lock's cached ISO.
func (s *site) iso(t *testing.T) artefact.Image {
	t.Helper()
	data := must.Get(os.ReadFile(filepath.Join(s.cache, s.lock.Schematics["default"].ISO.Name)))(t)
	return must.Get(artefact.ReadISO(data))(t)
}

// TestPatchedExtension is the story of an extension that is republished under the
// same version while the factory still has its old list.
func TestPatchedExtension(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		if warnings, _ := s.relock(t); len(warnings) > 0 {
			t.Fatal(warnings)
		}
		must.Do(t, s.build(t))
		before := s.lock.Schematics["default"]
		s.holds(t, before)

		was, is, err := s.catalog.Patch(t.Context(), talos, "qemu-guest-agent")
		must.Do(t, err)
		warnings, changes := s.relock(t)
		after := s.lock.Schematics["default"]
		must.Hold(t, before.SchematicID != after.SchematicID && before.BuildID != after.BuildID,
			"the patch changes neither schematic ID nor build ID")
		if len(changes) != 1 || len(changes[0].Moved) != 1 || changes[0].Moved[0].Old.Digest != was || changes[0].Moved[0].New.Digest != is {
			t.Errorf("changes = %+v, want %s → %s", changes, was, is)
		}
		must.Hold(t, len(warnings) == 1 && warnings[0].Locked == is && warnings[0].Found == was, "warnings = %+v", warnings)

		mutations := s.recorder.Mutations()
		err = s.build(t)
		must.Contain(t, "a stale factory", fmt.Sprint(err), was, is)
		must.Equal(t, "kind of the error", fault.Refused, fault.KindOf(err))
		must.Equal(t, "requests that changed something, though refused", mutations, s.recorder.Mutations())
		builds := func(e schematics.Locked) []string {
			return []string{"installer " + e.SchematicID + " v1.13.9 nocloud", "iso " + e.SchematicID + " v1.13.9 nocloud-amd64"}
		}
		s.built(t, builds(before)...)

		s.factory.Restart()
		must.Do(t, s.build(t))
		s.built(t, append(builds(before), builds(after)...)...)
		s.holds(t, s.lock.Schematics["default"])

		calls := len(s.recorder.Calls())
		must.Do(t, s.build(t))
		for _, c := range s.recorder.Calls()[calls:] {
			must.Hold(t, !c.Mutation && !strings.Contains(c.Path, "/image/"), "there is nothing to do, but %+v", c)
		}
		s.built(t, append(builds(before), builds(after)...)...)
	})
}

// digestOf is the digest of the extension image with a boot image's content, which names none.
func digestOf(t *testing.T, e artefact.Extension) string {
	t.Helper()
	idx := must.Get(artefact.ExtensionIndex(e))(t)
	digest := must.Get(idx.Digest())(t)
	return digest.String()
}

// holds checks the content of ISO and installer against the lock.
func (s *site) holds(t *testing.T, e schematics.Locked) {
	t.Helper()
	iso := s.iso(t)
	var got, want []string
	for _, x := range iso.Extensions {
		got = append(got, x.Name+" "+digestOf(t, x))
	}
	for _, name := range []string{"qemu-guest-agent", "iscsi-tools"} { // in the schematic's order
		for _, x := range e.Extensions {
			if x.Name == name {
				want = append(want, x.Name+" "+x.Digest)
			}
		}
	}
	must.Equal(t, "extensions in the ISO", want, got)
	if iso.SchematicID != e.SchematicID || iso.SchematicYAML != e.Schematic || !strings.Contains(iso.Cmdline, "recast.lock="+e.LockHash) {
		t.Errorf("schematic in the ISO: %+v", iso)
	}
	prefix := addr + "/nocloud-installer/" + e.SchematicID + "@sha256:"
	must.Hold(t, strings.HasPrefix(e.Installer, prefix), "installer = %s, want %s…", e.Installer, prefix)
	if _, found, err := s.registry.Digest(t.Context(), e.Installer); !found || err != nil {
		t.Errorf("the installer can't be pulled: %v", err)
	}
}

func TestUnknownTalosVersion(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		_, err := s.registry.Official(t.Context(), "v1.13.10")
		diff := cmp.Diff([]string{"the nearest versions are " + talos}, fault.Hints(err))
		must.Hold(t, fault.KindOf(err) == fault.Config && diff == "", "registry: %v (-want +got):\n%s", err, diff)
		if _, err := s.client.Extensions(t.Context(), "v1.13.10"); fault.KindOf(err) != fault.Config {
			t.Errorf("factory: %v", err)
		}
	})
}

// TestExamples posts every example to the factory: its IDs must be those that we compute.
func TestExamples(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		examples := os.DirFS("../../testdata/schematics")
		names, err := fs.Glob(examples, "*.yaml")
		if err != nil || len(names) == 0 {
			t.Fatal(names, err)
		}
		for _, name := range names {
			data := must.Get(fs.ReadFile(examples, name))(t)
			parsed := must.Get(schematics.Parse(name, data))(t)
			if id, _, err := s.client.Register(t.Context(), parsed.Canonical()); err != nil || id != parsed.ID() {
				t.Errorf("%s: the factory computes %s, recast %s; %v", name, id, parsed.ID(), err)
			}
		}
	})
}

// TestInstallerOfSlowFactory: a request for the manifest waits for the build, from the registry's client as well as
// BuildInstaller, but only the latter outlasts a proxy's timeout.
func TestInstallerOfSlowFactory(t *testing.T) {
	t.Parallel()
	digest := func(ctx context.Context, s *site, req images.ISORequest) error {
		_, found, err := s.registry.Digest(ctx, s.client.InstallerRepository(req)+":"+talos)
		if err == nil && !found {
			return errors.New("not found")
		}
		return err
	}
	build := func(ctx context.Context, s *site, req images.ISORequest) error {
		return s.client.BuildInstaller(ctx, req, s.note)
	}
	impatient := func(f *factoryapi.Factory) factoryapi.Trouble { return f.Impatient(time.Minute) }
	type row struct {
		ask     func(context.Context, *site, images.ISORequest) error
		trouble func(*factoryapi.Factory) factoryapi.Trouble
		times   int
		notes   int
	}
	eachInBubble(t, map[string]row{
		"pulled":         {digest, func(*factoryapi.Factory) factoryapi.Trouble { return factoryapi.Down(503, 0) }, 2, 0},
		"built":          {build, func(*factoryapi.Factory) factoryapi.Trouble { return factoryapi.Down(503, 0) }, 2, 30 + 2},
		"not heard of":   {build, func(*factoryapi.Factory) factoryapi.Trouble { return factoryapi.Unaware() }, 2, 30 + 2},
		"behind a proxy": {build, impatient, 100, 30 + 13},
	}, func(t *testing.T, tc row) {
		s := newSite(t)
		req := s.agents(t)
		s.factory.Slow(15 * time.Minute)
		s.factory.Strike(tc.times, "/v2/nocloud-installer/", tc.trouble(s.factory))
		must.Do(t, tc.ask(t.Context(), s, req))
		s.built(t, "installer "+req.SchematicID+" v1.13.9 nocloud")
		must.Hold(t, len(s.notes) == tc.notes, "%d notes, want %d: %q", len(s.notes), tc.notes, s.notes)
	})
}

// TestInstallerInAnotherRegistry: the installer exists, whatever registry the
// factory redirects to, even if pulling it there needs a login.
func TestInstallerInAnotherRegistry(t *testing.T) {
	t.Parallel()
	eachInBubble(t, map[string]http.HandlerFunc{
		"redirected": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://ghcr.example"+r.URL.Path, http.StatusTemporaryRedirect)
		},
		"for its users": answer(http.StatusUnauthorized, "authentication required"),
	}, func(t *testing.T, answer http.HandlerFunc) {
		must.Do(t, serve(t, answer).BuildInstaller(t.Context(), isoRequest, nil))
	})
}

// TestMirroredInstaller is the story of an installer that is copied, with the factory's signature, to the user's own
// registry, and suffices when the factory is gone.
func TestMirroredInstaller(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const mirror = registryAddr + "/acme/talos"
		s := newSite(t)
		s.relock(t)
		must.Do(t, s.build(t))
		built := s.lock.Schematics["default"]
		_, digest, _ := strings.Cut(built.Installer, "@")
		signature := s.sign(t, built.SchematicID, digest)

		run := func() error {
			m := images.Mirror{
				Copier: s.registry, Repository: mirror,
				Ledger: images.NewLedger(s.lock, func(l schematics.Lock) error { s.lock = l; return nil }),
			}
			return new(step.Runner).Run(t.Context(), m.Step())
		}
		must.Do(t, run())
		must.Equal(t, "installer", mirror+"@"+digest, s.lock.Schematics["default"].Installer)
		s.mirrorHolds(t, mirror, digest, signature, built)

		s.factory.Close()
		calls := len(s.recorder.Calls())
		must.Do(t, run())
		for _, c := range s.recorder.Calls()[calls:] {
			must.Hold(t, !c.Mutation, "there is nothing to do, but %+v", c)
		}
	})
}

// sign puts a signature where the factory keeps those of its installers.
func (s *site) sign(t *testing.T, schematicID, digest string) (signature string) {
	t.Helper()
	sig := must.Get(random.Image(64, 1))(t)
	tag := must.Get(name.NewTag(registryAddr + "/factory/nocloud-installer/" + schematicID + ":" + strings.Replace(digest, ":", "-", 1) + ".sig"))(t)
	must.Do(t, remote.Write(tag, sig, remote.WithTransport(s.catalog.Transport)))
	hash := must.Get(sig.Digest())(t)
	return hash.String()
}

// mirrorHolds reads the copy for both architectures, as nodes do, and its signature.
func (s *site) mirrorHolds(t *testing.T, mirror, digest, signature string, e schematics.Locked) {
	t.Helper()
	ref := must.Get(name.NewDigest(mirror + "@" + digest))(t)
	index := must.Get(remote.Index(ref, remote.WithTransport(s.catalog.Transport)))(t)
	for _, arch := range []string{"amd64", "arm64"} {
		img, err := artefact.ReadInstaller(index, arch)
		must.Hold(t, err == nil && img.SchematicID == e.SchematicID, "%s: schematic %q, %v", arch, img.SchematicID, err)
	}
	for tag, want := range map[string]string{
		talos + "-" + schematics.Short(e.BuildID):     digest,
		strings.Replace(digest, ":", "-", 1) + ".sig": signature,
	} {
		if got, found, err := s.registry.Head(t.Context(), mirror+":"+tag); err != nil || !found || got != want {
			t.Errorf("%s: %q %t %v, want %s", tag, got, found, err, want)
		}
	}
}

package factory

import (
	"context"
	"errors"
	"fmt"
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
		if before.SchematicID == after.SchematicID || before.BuildID == after.BuildID {
			t.Error("the patch changes neither schematic ID nor build ID")
		}
		if len(changes) != 1 || len(changes[0].Moved) != 1 || changes[0].Moved[0].Old.Digest != was || changes[0].Moved[0].New.Digest != is {
			t.Errorf("changes = %+v, want %s → %s", changes, was, is)
		}
		if len(warnings) != 1 || warnings[0].Locked != is || warnings[0].Found != was {
			t.Errorf("warnings = %+v", warnings)
		}

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
			if c.Mutation || strings.Contains(c.Path, "/image/") {
				t.Errorf("there is nothing to do, but %+v", c)
			}
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
	if !strings.HasPrefix(e.Installer, prefix) {
		t.Errorf("installer = %s, want %s…", e.Installer, prefix)
	}
	if _, found, err := s.registry.Digest(t.Context(), e.Installer); !found || err != nil {
		t.Errorf("the installer can't be pulled: %v", err)
	}
}

func TestUnknownTalosVersion(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		_, err := s.registry.Official(t.Context(), "v1.13.10")
		if diff := cmp.Diff([]string{"the nearest versions are " + talos}, fault.Hints(err)); fault.KindOf(err) != fault.Config || diff != "" {
			t.Errorf("registry: %v (-want +got):\n%s", err, diff)
		}
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

// TestInstallerOfSlowFactory: a request for the manifest waits for the build, from
// the registry's client as well as BuildInstaller, but only the latter outlasts a
// proxy's timeout.
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
		if len(s.notes) != tc.notes {
			t.Errorf("%d notes, want %d: %q", len(s.notes), tc.notes, s.notes)
		}
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

// TestMirroredInstaller is the story of an installer that is copied, with the
// factory's signature, to the user's own registry, and suffices when the factory is
// gone.
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
			if c.Mutation {
				t.Errorf("there is nothing to do, but %+v", c)
			}
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
		if err != nil || img.SchematicID != e.SchematicID {
			t.Errorf("%s: schematic %q, %v", arch, img.SchematicID, err)
		}
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

package imager

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	ggcr "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/images/verify"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/registry"
	"github.com/recast-sh/recast/internal/sim/artefact"
	sim "github.com/recast-sh/recast/internal/sim/imager"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/schematics"
)

func TestBuilt(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	s.program = true
	must.Do(t, s.build(t.Context(), t))
	s.checkBuilt(t)
	must.Equal(t, "runs", []string{"installer", "iso", "image"}, s.runs(t))

	t.Log("with nothing to do, nothing runs")
	before := s.lock
	s.revive(0, false)
	must.Do(t, s.build(t.Context(), t))
	if got := s.runs(t); len(got) > 0 || s.changes > 0 || !cmp.Equal(before, s.lock) {
		t.Errorf("again: runs %q, %d changes", got, s.changes)
	}

	t.Log("another machine finds them beside the installer")
	must.Do(t, os.RemoveAll(filepath.Join(s.dir, "iso")))
	must.Do(t, s.build(t.Context(), t))
	if got := s.runs(t); len(got) > 0 || !cmp.Equal(before, s.lock) {
		t.Errorf("another machine: runs %q, lock\n%s", got, cmp.Diff(before, s.lock))
	}
	for _, name := range []string{s.entry().ISO.Name, s.entry().Disk.Name} {
		if _, err := os.Stat(filepath.Join(s.dir, "iso", name)); err != nil {
			t.Error(err)
		}
	}

	t.Log("everyone who resolves the same build gets the same, verified images")
	must.Do(t, os.RemoveAll(filepath.Join(s.dir, "iso")))
	s.resolve(t)
	must.Do(t, s.build(t.Context(), t))
	if got := s.runs(t); len(got) > 0 || !cmp.Equal(before.Schematics, s.lock.Schematics) {
		t.Errorf("resolved again: runs %q, lock\n%s", got, cmp.Diff(before, s.lock))
	}
}

// Where disk images are wanted later, only they are built.
func TestDiskImageLater(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	s.noDisk = true
	must.Do(t, s.build(t.Context(), t))
	if d := cmp.Diff([]string{"installer", "iso"}, s.runs(t)); d != "" || s.entry().Disk != (schematics.Disk{}) {
		t.Errorf("the lock has %+v, runs (-want +got):\n%s", s.entry().Disk, d)
	}
	without := s.entry()
	s.noDisk = false
	must.Do(t, s.build(t.Context(), t))
	s.checkBuilt(t)
	must.Equal(t, "runs", []string{"image"}, s.runs(t))
	without.Disk = s.entry().Disk
	must.Equal(t, "the lock", without, s.entry())
}

// A run that dies at any change to the mirror is finished by the next one, and until
// then no tag names unverified content.
func TestKilledAtEveryChange(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("long: it builds three images for every request")
	}
	undisturbed := newStory(t)
	must.Do(t, undisturbed.build(t.Context(), t))
	for n := 1; n <= undisturbed.changes; n++ {
		for _, after := range []bool{false, true} {
			s := newStory(t)
			s.revive(n, after)
			must.Be(t, s.build(t.Context(), t) != nil, "change %d: it was not killed", n)
			s.revive(0, false)
			if e := s.entry(); e.Installer == "" && e.ISO.SHA256 != "" || e.ISO.SHA256 == "" && e.Disk.SHA256 != "" {
				t.Errorf("change %d: locked in another order: %+v", n, e)
			}
			s.checkNothingLeft(t)
			err := s.build(t.Context(), t)
			must.Be(t, err == nil, "after change %d: %v", n, err)
			s.checkBuilt(t)
			must.Be(t, !t.Failed(), "at change %d of %d, made: %t", n, undisturbed.changes, after)
		}
	}
	t.Attr("kills", strconv.Itoa(2*undisturbed.changes))
}

func TestRefusesUnlockedContent(t *testing.T) {
	t.Parallel()
	type row struct {
		way            string
		want           string
		installer, iso bool // are recorded anyway
	}
	must.Each(t, map[string]row{
		"another file":           {way: "build-swapped", want: "frr"},
		"another Talos":          {way: "build-other-version", want: "v1.13.8"},
		"another base":           {way: "build-other-base", want: "the image is not based on "},
		"an ISO with too little": {way: "build-other-iso", want: "boot ISO", installer: true},
		"half an ISO":            {way: "build-cut-iso", want: "boot ISO", installer: true},
		"a disk with too little": {way: "build-other-disk", want: "disk image: ", installer: true, iso: true},
		"half a disk":            {way: "build-cut-disk", want: "disk image: ", installer: true, iso: true},
	}, func(t *testing.T, c row) {
		s := newStory(t)
		s.way = c.way
		err := s.build(t.Context(), t)
		must.Contain(t, "error", fmt.Sprint(err), c.want)
		must.Equal(t, "kind of the error", fault.Refused, fault.KindOf(err))
		e := s.entry()
		must.Hold(t, e.Disk == (schematics.Disk{}) && (e.ISO.SHA256 != "") == c.iso && (e.Installer != "") == c.installer,
			"recorded: %q, %+v, %+v", e.Installer, e.ISO, e.Disk)
		if _, found, err := s.registry.Digest(t.Context(), s.tag()); err != nil || found != c.installer {
			t.Errorf("tag is there: %t, %v", found, err)
		}
		s.checkNothingLeft(t)
		kept := "*"
		if c.iso {
			kept = "*.qcow2*"
		}
		if left, err := filepath.Glob(filepath.Join(s.dir, "iso", kept)); err != nil || len(left) > 0 {
			t.Errorf("in the cache: %q, %v", left, err)
		}
	})
}

// One of our tags on something else is neither trusted nor moved.
func TestForeignTagIsRefused(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	s.put(t, "acme/talos", "v1.13.9-"+schematics.Short(s.entry().BuildID), random.Index, nil)
	s.revive(0, false)
	err := s.build(t.Context(), t)
	if err == nil || s.entry().Installer != "" || s.changes > 0 || len(s.runs(t)) > 0 {
		t.Errorf("err = %v, installer %q, %d changes", err, s.entry().Installer, s.changes)
	}
	must.Contain(t, "hints", strings.Join(fault.Hints(err), "\n"), "delete it from the registry")
}

// An installer with the right content but another base's programs is not taken over.
func TestForeignInstallerIsRefused(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	must.Do(t, s.build(t.Context(), t))
	s.runs(t)
	s.base = s.host + "/acme/base"
	s.put(t, "acme/base", "v1.13.9", nil, baseImages)
	s.resolve(t)
	err := s.build(t.Context(), t)
	if fault.KindOf(err) != fault.Refused || !strings.Contains(err.Error(), "is not based on "+s.base) || s.entry().Installer != "" {
		t.Errorf("err = %v", err)
	}
	got := s.runs(t)
	must.Hold(t, len(got) == 0, "runs %q", got)
}

// TestTagsMovedAfterTheLock: who moves the tags of the imager and of the base installer after `recast lock` gets into no build.
func TestTagsMovedAfterTheLock(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	imager := s.host + "/siderolabs/imager"
	locked := map[string]string{}
	for _, repository := range []string{imager, s.base} {
		locked[repository], _, _ = s.registry.Digest(t.Context(), repository+":v1.13.9")
	}
	s.put(t, "siderolabs/imager", "v1.13.9", random.Index, nil)
	s.put(t, "siderolabs/installer-base", "v1.13.9", nil, baseImages)

	s.client = client(t, Options{Image: imager})
	log := engine(t, s.client, "docker")
	must.Hold(t, s.build(t.Context(), t) != nil, "the stand-in for docker builds no image")
	must.Contain(t, "run", read(t, log), imager+"@"+locked[imager])

	s.client = nil
	must.Do(t, s.build(t.Context(), t))
	must.Do(t, s.registry.BuiltUpon(t.Context(), s.entry().Installer, s.base+"@"+locked[s.base], "amd64"))
}

// A definite loss is reported: another build would make every node stale.
func TestLostImagesAreNotBuiltAgain(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	must.Do(t, s.build(t.Context(), t))
	s.runs(t)
	built := s.lock.Clone()
	lose := func(change func(e *schematics.Locked)) {
		e := built.Clone().Schematics["bgp"]
		change(&e)
		s.lock = built.Clone()
		s.lock.Schematics["bgp"] = e
	}
	none := strings.Repeat("0", 64)
	lose(func(e *schematics.Locked) { e.Installer = s.host + "/acme/talos@sha256:" + none })
	if err := s.build(t.Context(), t); fault.KindOf(err) != fault.Refused || !strings.Contains(err.Error(), "is gone") {
		t.Errorf("installer: err = %v", err)
	}
	lose(func(e *schematics.Locked) { e.ISO.SHA256 = none })
	if err := s.build(t.Context(), t); fault.KindOf(err) != fault.Refused || !strings.Contains(err.Error(), "never makes the same bytes again") {
		t.Errorf("ISO: err = %v", err)
	}
	lose(func(e *schematics.Locked) { e.Disk.SHA256 = none })
	if err := s.build(t.Context(), t); fault.KindOf(err) != fault.Refused || !strings.Contains(err.Error(), ".qcow2 is neither in the cache nor beside the installer") {
		t.Errorf("disk image: err = %v", err)
	}
	got := s.runs(t)
	must.Hold(t, len(got) == 0, "runs %q", got)
}

func TestProgramThatFails(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	s.way, s.program = "half", true
	err := s.build(t.Context(), t)
	if err == nil || !strings.Contains(err.Error(), "no space left on device") || s.entry().Installer != "" {
		t.Errorf("err = %v, installer %q", err, s.entry().Installer)
	}
	s.checkNothingLeft(t)
}

// What the imager cannot build is reported before anything is fetched or pushed.
func TestWhatTheImagerCannotBuild(t *testing.T) {
	t.Parallel()
	type row struct {
		change func(s *story)
		want   string
		kind   fault.Kind
	}
	must.Each(t, map[string]row{
		"without a mirror": {func(s *story) { s.mirror = "" }, "no repository to pull its installer from", fault.Config},
		"for Secure Boot":  {func(s *story) { s.lock.SecureBoot = true }, "no key to sign", fault.Refused},
		"with a machine configuration": {func(s *story) {
			e := s.entry()
			e.Schematic = "customization:\n    embeddedMachineConfiguration: secret\n"
			s.lock.Schematics["bgp"] = e
		}, "would print with its secrets", fault.Refused},
		"another base than locked":  {func(s *story) { s.base = s.host + "/siderolabs/nothing" }, "recast.lock has no digest of ", fault.Config},
		"a lock of an older recast": {func(s *story) { s.lock.Imager = schematics.Imager{} }, "recast.lock has no digest of ", fault.Config},
	}, func(t *testing.T, c row) {
		s := newStory(t)
		c.change(s)
		err := s.build(t.Context(), t)
		must.Hold(t, fault.KindOf(err) == c.kind && strings.Contains(err.Error(), c.want) && len(fault.Hints(err)) != 0,
			"err = %v, hints %q", err, fault.Hints(err))
		must.Hold(t, s.changes <= 0 && len(s.runs(t)) == 0, "%d changes were made", s.changes)
		s.checkNothingLeft(t)
	})
}

// story is a registry with the imager's inputs, a lock whose schematic "bgp" it builds, and a project's directory.
type story struct {
	host     string
	mirror   string // repository
	base     string // the repository of the base installer
	registry *registry.Client
	client   *Client         // nil: a program
	lock     schematics.Lock // as saved last
	dir      string
	program  bool   // the imager is a process
	noDisk   bool   // machines boot only ISOs
	way      string // its behaviour
	notes    []string

	mu      sync.Mutex
	changes int  // requests that change something in the mirror
	killAt  int  // the change at which the run dies; 0: none
	after   bool // it dies after that change, not before
	killed  bool
	kill    context.CancelFunc // ends the run
}

func newStory(t *testing.T) *story {
	t.Helper()
	s := &story{dir: t.TempDir(), way: "build"}
	handler := ggcr.New(ggcr.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.takes(r) {
			handler.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(server.Close)
	s.host = strings.TrimPrefix(server.URL, "http://")
	s.mirror, s.base = s.host+"/acme/talos", s.host+"/siderolabs/installer-base"
	s.fill(t)
	s.registry = must.Get(registry.New(registry.Options{Extensions: s.host + "/siderolabs/extensions", Keychain: authn.NewMultiKeychain()}))(t)
	t.Cleanup(func() { _ = s.registry.Close() })
	s.resolve(t)
	return s
}

// takes reports whether a request comes from a live run.
func (s *story) takes(r *http.Request) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.killed {
		return false
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead && strings.Contains(r.URL.Path, "/acme/talos/") {
		s.changes++
		if s.killed = s.changes == s.killAt; s.killed {
			s.kill()
			return s.after
		}
	}
	return true
}

// revive ends the death, restarts the count, and sets the next death.
func (s *story) revive(killAt int, after bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changes, s.killAt, s.after, s.killed = 0, killAt, after, false
}

// fill pushes the imager, the base installer, and two extensions.
func (s *story) fill(t *testing.T) {
	t.Helper()
	s.put(t, "siderolabs/imager", "v1.13.9", random.Index, nil)
	s.put(t, "siderolabs/installer-base", "v1.13.9", nil, baseImages)
	s.put(t, "siderolabs/agent", "1.0", nil, func() (v1.ImageIndex, error) {
		return artefact.ExtensionIndex(artefact.Extension{
			Name: "agent", Version: "1.0", Author: "Sidero Labs", Files: map[string][]byte{"/usr/local/bin/agent": []byte("agent")},
		})
	})
	s.put(t, "acme/frr", "1.7.15", nil, func() (v1.ImageIndex, error) {
		return artefact.ExtensionIndex(artefact.Extension{
			Name: "frr", Version: "1.7.15", Author: "Acme", Files: map[string][]byte{"/usr/local/bin/frr": []byte("frr")},
		})
	})
}

// baseImages are base images of installers; no two are equal.
func baseImages() (v1.ImageIndex, error) {
	index := v1.ImageIndex(empty.Index)
	for _, arch := range []string{"amd64", "arm64"} {
		img, err := random.Image(512, 1)
		if err != nil {
			return nil, err
		}
		if img, err = withArch(img, arch); err != nil {
			return nil, err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: img, Descriptor: linux(arch),
		})
	}
	return index, nil
}

func withArch(img v1.Image, arch string) (v1.Image, error) {
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.Architecture, config.OS = arch, "linux"
	return mutate.ConfigFile(img, config)
}

func linux(arch string) v1.Descriptor {
	return v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}}
}

func (s *story) put(t *testing.T, repository, tag string, random func(int64, int64, int64, ...random.Option) (v1.ImageIndex, error), make func() (v1.ImageIndex, error)) {
	t.Helper()
	if random != nil {
		make = func() (v1.ImageIndex, error) { return random(64, 1, 1) }
	}
	index := must.Get(make())(t)
	r := must.Get(name.NewTag(s.host + "/" + repository + ":" + tag))(t)
	must.Do(t, remote.WriteIndex(r, index))
}

// resolve makes the lock again, as `recast lock` does.
func (s *story) resolve(t *testing.T) {
	t.Helper()
	digest, _, err := s.registry.Digest(t.Context(), s.host+"/siderolabs/agent:1.0")
	must.Do(t, err)
	s.lock, _, err = schematics.Resolve(t.Context(), schematics.Request{
		Talos: "v1.13.9", Arch: "amd64", Platform: "nocloud", Imager: schematics.Imager{Image: s.host + "/siderolabs/imager", Base: s.base},
		Files: map[string]schematics.File{"bgp": {
			Path: "bgp.yaml", Imager: true,
			Data:       []byte("customization: {extraKernelArgs: [net.ifnames=0], meta: [{key: 12, value: rack 7}], systemExtensions: {officialExtensions: [siderolabs/agent]}}\n"),
			Extensions: []schematics.Explicit{{Repository: s.host + "/acme/frr", Tag: "1.7.15"}},
		}},
	}, schematics.Sources{
		Catalog: catalog{{Name: "siderolabs/agent", Version: "1.0", Ref: s.host + "/siderolabs/agent", Digest: digest}},
		Images:  s.registry,
	})
	must.Do(t, err)
}

type catalog []schematics.OfficialExtension

func (c catalog) Official(context.Context, string) ([]schematics.OfficialExtension, error) {
	return c, nil
}

// nowhere is a factory that is not involved in these builds.
type nowhere struct{ images.Factory }

func (nowhere) InstallerRepository(images.ISORequest) string { return "factory.example/installer" }

// build builds as `recast publish --only build` does, from the files.
func (s *story) build(ctx context.Context, t *testing.T) error {
	t.Helper()
	s.notes = nil
	o := Options{Command: []string{os.Args[0], fakeArg, s.way, "{out}"}}
	if !s.program {
		o.Run = func(_ context.Context, args []string, profile []byte) error { return build(s.way, profile, args[3]) }
	}
	imager := s.client
	if imager == nil {
		imager = client(t, o)
	}
	verifier := verify.New(s.registry, filepath.Join(s.dir, "verify"))
	b := images.Builder{
		Factory: nowhere{}, Registry: s.registry, Puller: s.registry, Verifier: verifier,
		Signature: images.SignaturePolicy{Mode: images.SignatureRequire},
		Cache:     images.NewCache(filepath.Join(s.dir, "iso")),
		Ledger: images.NewLedger(s.lock, func(l schematics.Lock) error {
			if s.killedNow() {
				return errors.New("killed")
			}
			s.lock = l
			return nil
		}),
		ByImager: images.ImagerBuilder{
			Builds: func(schematic string) bool { return schematic == "bgp" },
			Imager: imager, Archives: s.registry, Copier: s.registry,
			Base: s.base, Scratch: filepath.Join(s.dir, "imager"),
		},
		Mirror: s.mirror,
		Disk:   func(string) bool { return !s.noDisk },
		Note:   func(path, text string) { s.notes = append(s.notes, path+": "+text) },
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.mu.Lock()
	s.kill = cancel
	s.mu.Unlock()
	runner := step.Runner{}
	return errors.Join(runner.Run(ctx, b.Step()), verifier.Close())
}

func (s *story) killedNow() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.killed
}

// runs returns the program's runs since the last call.
func (s *story) runs(t *testing.T) []string {
	t.Helper()
	file := filepath.Join(s.dir, "runs")
	b, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	must.Do(t, errors.Join(err, os.Remove(file)))
	return strings.Fields(string(b))
}

func (s *story) entry() schematics.Locked { return s.lock.Schematics["bgp"] }

func (s *story) tag() string {
	return s.host + "/acme/talos:v1.13.9-" + schematics.Short(s.entry().BuildID)
}

// checkBuilt checks that everything exists that a built lock names.
func (s *story) checkBuilt(t *testing.T) {
	t.Helper()
	e := s.entry()
	digest, found, err := s.registry.Digest(t.Context(), s.tag())
	must.Hold(t, err == nil && found && e.Installer == s.host+"/acme/talos@"+digest,
		"the lock has %s, the tag is %s (%v)", e.Installer, digest, err)
	list, err := s.registry.Attached(t.Context(), e.Installer)
	slices.SortFunc(list, func(a, b schematics.BootFile) int { return strings.Compare(a.Name, b.Name) })
	d := cmp.Diff([]schematics.BootFile{e.ISO, e.Disk.BootFile}, list)
	must.Hold(t, err == nil && d == "", "%v; beside the installer (-lock +got):\n%s", err, d)
	must.Hold(t, e.ISO.SHA256 != "" && e.Disk.SHA256 != "" && e.Disk.DiskBytes >= 1<<20,
		"the lock has %+v, %+v", e.ISO, e.Disk)
	s.checkNothingLeft(t)
}

func (s *story) checkNothingLeft(t *testing.T) {
	t.Helper()
	left, err := os.ReadDir(filepath.Join(s.dir, "imager"))
	must.Hold(t, (err == nil || errors.Is(err, os.ErrNotExist)) && len(left) == 0,
		"left in the build directory: %v, %v", left, err)
}

// build does what the imager does. way is "build", or "build-" and the fault. Each
// run is counted in the file runs, beside the directory of all runs.
func build(way string, profile []byte, out string) error {
	kind := sim.ISO
	for _, k := range []string{sim.Installer, sim.Disk} {
		if strings.Contains(string(profile), "kind: "+k) {
			kind = k
		}
	}
	runs, err := os.OpenFile(filepath.Join(filepath.Dir(filepath.Dir(filepath.Dir(out))), "runs"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = fmt.Fprintln(runs, kind)
		err = errors.Join(err, runs.Close())
	}
	if err == nil && way == "build-other-base" && kind == sim.Installer {
		err = otherBase(filepath.Join(out, "in", "installer-base"))
	}
	if err == nil {
		err = sim.Build(profile, out, func(kind string, img *artefact.Image) { spoil(way, kind, img) })
	}
	if err == nil && way == "build-cut-iso" && kind == sim.ISO {
		err = os.Truncate(filepath.Join(out, "nocloud-amd64.iso"), 50_000)
	}
	if err == nil && way == "build-cut-disk" && kind == sim.Disk {
		err = os.Truncate(filepath.Join(out, "nocloud-amd64.qcow2"), 50_000)
	}
	return err
}

func spoil(way, kind string, img *artefact.Image) {
	switch {
	case way == "build-swapped":
		img.Extensions[1].Files["/usr/local/bin/frr"] = []byte("evil")
	case way == "build-other-version":
		img.TalosVersion = "v1.13.8"
	case way == "build-other-iso" && kind == sim.ISO, way == "build-other-disk" && kind == sim.Disk:
		img.Extensions = img.Extensions[1:]
	}
}

// otherBase replaces the base image of the build.
func otherBase(dir string) error {
	img, err := random.Image(512, 1)
	if err != nil {
		return err
	}
	if img, err = withArch(img, "amd64"); err != nil {
		return err
	}
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	return path.AppendImage(img, layout.WithPlatform(*linux("amd64").Platform))
}

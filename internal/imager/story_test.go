package imager

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/schematics"
)

func TestBuilt(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	s.program = true
	noError(t, s.build(t.Context(), t))
	s.checkBuilt(t)
	same(t, "runs", []string{"installer", "iso", "image"}, s.runs(t))

	t.Log("with nothing to do, nothing runs")
	before := s.lock
	s.revive(0, false)
	noError(t, s.build(t.Context(), t))
	if got := s.runs(t); len(got) > 0 || s.changes > 0 || !cmp.Equal(before, s.lock) {
		t.Errorf("again: runs %q, %d changes", got, s.changes)
	}

	t.Log("another machine finds them beside the installer")
	noError(t, os.RemoveAll(filepath.Join(s.dir, "iso")))
	noError(t, s.build(t.Context(), t))
	if got := s.runs(t); len(got) > 0 || !cmp.Equal(before, s.lock) {
		t.Errorf("another machine: runs %q, lock\n%s", got, cmp.Diff(before, s.lock))
	}
	for _, name := range []string{s.entry().ISO.Name, s.entry().Disk.Name} {
		if _, err := os.Stat(filepath.Join(s.dir, "iso", name)); err != nil {
			t.Error(err)
		}
	}

	t.Log("everyone who resolves the same build gets the same, verified images")
	noError(t, os.RemoveAll(filepath.Join(s.dir, "iso")))
	s.resolve(t)
	noError(t, s.build(t.Context(), t))
	if got := s.runs(t); len(got) > 0 || !cmp.Equal(before.Schematics, s.lock.Schematics) {
		t.Errorf("resolved again: runs %q, lock\n%s", got, cmp.Diff(before, s.lock))
	}
}

// Where disk images are wanted later, only they are built.
func TestDiskImageLater(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	s.noDisk = true
	noError(t, s.build(t.Context(), t))
	if d := cmp.Diff([]string{"installer", "iso"}, s.runs(t)); d != "" || s.entry().Disk != (schematics.Disk{}) {
		t.Errorf("the lock has %+v, runs (-want +got):\n%s", s.entry().Disk, d)
	}
	without := s.entry()
	s.noDisk = false
	noError(t, s.build(t.Context(), t))
	s.checkBuilt(t)
	same(t, "runs", []string{"image"}, s.runs(t))
	without.Disk = s.entry().Disk
	same(t, "the lock", without, s.entry())
}

// A run that dies at any change to the mirror is finished by the next one, and until
// then no tag names unverified content.
func TestKilledAtEveryChange(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("long: it builds three images for every request")
	}
	undisturbed := newStory(t)
	noError(t, undisturbed.build(t.Context(), t))
	for n := 1; n <= undisturbed.changes; n++ {
		for _, after := range []bool{false, true} {
			s := newStory(t)
			s.revive(n, after)
			if err := s.build(t.Context(), t); err == nil {
				t.Fatalf("change %d: it was not killed", n)
			}
			s.revive(0, false)
			if e := s.entry(); e.Installer == "" && e.ISO.SHA256 != "" || e.ISO.SHA256 == "" && e.Disk.SHA256 != "" {
				t.Errorf("change %d: locked in another order: %+v", n, e)
			}
			s.checkNothingLeft(t)
			if err := s.build(t.Context(), t); err != nil {
				t.Fatalf("after change %d: %v", n, err)
			}
			s.checkBuilt(t)
			if t.Failed() {
				t.Fatalf("at change %d of %d, made: %t", n, undisturbed.changes, after)
			}
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
	each(t, map[string]row{
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
		if err == nil || fault.KindOf(err) != fault.Refused || !strings.Contains(err.Error(), c.want) {
			t.Errorf("err = %v, want one with %q", err, c.want)
		}
		e := s.entry()
		if e.Disk != (schematics.Disk{}) || (e.ISO.SHA256 != "") != c.iso || (e.Installer != "") != c.installer {
			t.Errorf("recorded: %q, %+v, %+v", e.Installer, e.ISO, e.Disk)
		}
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
	if hints := strings.Join(fault.Hints(err), "\n"); !strings.Contains(hints, "delete it from the registry") {
		t.Errorf("hints: %s", hints)
	}
}

// An installer with the right content but another base's programs is not taken over.
func TestForeignInstallerIsRefused(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	lock := s.lock.Clone()
	noError(t, s.build(t.Context(), t))
	s.runs(t)
	s.lock, s.base = lock, s.host+"/acme/base"
	s.put(t, "acme/base", "v1.13.9", nil, baseImages)
	err := s.build(t.Context(), t)
	if fault.KindOf(err) != fault.Refused || !strings.Contains(err.Error(), "is not based on "+s.base) || s.entry().Installer != "" {
		t.Errorf("err = %v", err)
	}
	if got := s.runs(t); len(got) > 0 {
		t.Errorf("runs %q", got)
	}
}

// A definite loss is reported: another build would make every node stale.
func TestLostImagesAreNotBuiltAgain(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	noError(t, s.build(t.Context(), t))
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
	if got := s.runs(t); len(got) > 0 {
		t.Errorf("runs %q", got)
	}
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
	each(t, map[string]row{
		"without a mirror": {func(s *story) { s.mirror = "" }, "no repository to pull its installer from", fault.Config},
		"for Secure Boot":  {func(s *story) { s.lock.SecureBoot = true }, "no key to sign", fault.Refused},
		"with a machine configuration": {func(s *story) {
			e := s.entry()
			e.Schematic = "customization:\n    embeddedMachineConfiguration: secret\n"
			s.lock.Schematics["bgp"] = e
		}, "would print with its secrets", fault.Refused},
		"without a base": {func(s *story) { s.base = s.host + "/siderolabs/nothing" }, "there is no ", fault.Config},
	}, func(t *testing.T, c row) {
		s := newStory(t)
		c.change(s)
		err := s.build(t.Context(), t)
		if fault.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.want) || len(fault.Hints(err)) == 0 {
			t.Errorf("err = %v, hints %q", err, fault.Hints(err))
		}
		if s.changes > 0 || len(s.runs(t)) > 0 {
			t.Errorf("%d changes were made", s.changes)
		}
		s.checkNothingLeft(t)
	})
}

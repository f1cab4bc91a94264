package factory

import (
	"os"
	"path/filepath"
	"testing"
)

// rebuildsTheISO makes the factory lose its cache. It rebuilds the boot ISO, which never has the same bytes.
func (s *stage) rebuildsTheISO() {
	s.tell("The factory's cache is lost, and recast's: the boot ISO is rebuilt with other bytes and the same content")
	before := s.lock().Schematics
	s.core.forgets(s.t, "factory/cache")
	s.losesISO("storage")
	said, _ := s.typed(0, "publish", "--only", "build")
	s.verified++
	was, is := before["storage"], s.lock().Schematics["storage"]
	if is.ISO.SHA256 == was.ISO.SHA256 {
		s.t.Fatal("the factory has built the same bytes: nothing is shown by that")
	}
	s.says(said, "its content is as locked: its SHA-256 "+is.ISO.SHA256+" replaces "+was.ISO.SHA256+" in recast.lock")
	if got := fileSum(s.t, s.cachedISO("storage")); got != is.ISO.SHA256 {
		s.t.Fatalf("the lock has SHA-256 %s of an ISO that has %s", is.ISO.SHA256, got)
	}
	if is.ISO.Name != was.ISO.Name || is.BuildID != was.BuildID || is.SchematicID != was.SchematicID || is.Installer != was.Installer {
		s.t.Fatalf("more than the ISO's sum has changed: %+v → %+v", was, is)
	}
	if after := s.lock().Schematics["default"]; after.ISO != before["default"].ISO {
		s.t.Fatalf("of an ISO that was not lost there is %+v instead of %+v", after.ISO, before["default"].ISO)
	}
	recorded, images := s.read("recast.lock"), s.front.images.Load()
	s.typed(0, "publish", "--only", "build")
	if s.read("recast.lock") != recorded || s.front.images.Load() != images {
		s.t.Fatal("recast publish --only build does it again with nothing to do")
	}
}

// refusesAnotherISO makes a restarted replica build the ISO of the locked schematic: its name is the
// lock's, but the factory's cache key has the digest of the new extension.
func (s *stage) refusesAnotherISO() {
	s.tell("iscsi-tools is republished, and a restarted replica builds the ISO of the same schematic with it: its content differs")
	recorded := s.read("recast.lock")
	s.core.official(s.t, talosVersion, drbd(), ucode(), iscsiTools("2"), guestAgent())
	fresh := s.server.start(s.t)
	s.front.splits(s.t, s.factory, fresh)
	s.losesISO("storage")
	said, _ := s.typed(4, "publish", "--only", "build")
	s.refused++
	e := s.lock().Schematics["storage"]
	s.says(said, "the factory's boot ISO differs from the lock's (SHA-256 ", ", locked is "+e.ISO.SHA256+"), and so does its content: ", "iscsi-tools", e.extension(s.t, "iscsi-tools").Digest, "/"+patched, "recast runbook image-differs")
	if s.read("recast.lock") != recorded {
		s.t.Fatal("recast.lock was written")
	}
	if _, err := os.Stat(s.cachedISO("storage")); err == nil {
		s.t.Fatal("what was refused is in the cache")
	}

	s.notes("the list is taken back; the factory that has built the lock's ISO serves it still")
	s.core.official(s.t, talosVersion, drbd(), ucode(), iscsiTools("1"), guestAgent())
	s.front.leads(s.t, s.factory)
	fresh.stop(s.t)
	s.typed(0, "publish", "--only", "build")
	if s.read("recast.lock") != recorded || fileSum(s.t, s.cachedISO("storage")) != e.ISO.SHA256 {
		s.t.Fatal("the lock's own ISO was not taken as it is")
	}
}

// cachedISO is the path of the boot ISO of a schematic in recast's cache.
func (s *stage) cachedISO(schematic string) string {
	return filepath.Join(s.dir, ".recast/cache/iso", s.lock().Schematics[schematic].ISO.Name)
}

func (s *stage) losesISO(schematic string) {
	s.t.Helper()
	mustDo(s.t, os.Remove(s.cachedISO(schematic)))
}

func fileSum(t *testing.T, path string) string {
	t.Helper()
	b := must(os.ReadFile(path))(t)
	return checksum(b)
}

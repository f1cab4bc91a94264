package schematics

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/internal/fault"
	"go.yaml.in/yaml/v4"
)

const (
	lockHeader   = "# Written by recast: commit it, do not edit it.\n"
	secretHeader = "# Written by recast: do not edit it, and do not commit it, for a schematic in it holds secrets.\n"
)

const restore = "put the committed one back: git checkout recast.lock. Without one, remove it and run `recast lock`, " +
	"which takes the digests that the registries have now"

// ReadLock reads recast.lock. It refuses a lock that was truncated, edited by hand or is inconsistent; errors are of
// kind Config. If the file does not exist, the error is fs.ErrNotExist by errors.Is.
func ReadLock(path string) (Lock, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Lock{}, fault.WithHint(fault.LockStale.Configf("no lock: %w", err), "run `recast lock`")
	}
	if err != nil {
		return Lock{}, fault.Configf("read the lock: %w", err)
	}
	l, err := ParseLock(path, data)
	return l, fault.WithHint(err, restore)
}

// WriteLock writes recast.lock so that after a crash either the old or the new lock exists. If the lock holds
// secrets, only its owner may read it.
func WriteLock(path string, l Lock) error {
	mode := fs.FileMode(0o644)
	if l.HoldsSecrets() {
		mode = 0o600
	}
	if err := writeLock(path, l, mode); err != nil {
		return fmt.Errorf("write the lock: %w", err)
	}
	return nil
}

// ReplaceLock writes recast.lock if the file still holds the lock was; a zero was means that there was no file.
// During a build, which takes minutes, another recast or git may write another lock. The results for the old lock
// must not overwrite that lock.
func ReplaceLock(path string, was, l Lock) error {
	now, err := ReadLock(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && was.Version == 0:
		return WriteLock(path, l)
	case err != nil:
		return err
	case now.checksum() == l.checksum():
		return nil // someone else wrote the same lock
	case now.checksum() != was.checksum():
		return fault.WithHint(fault.LockStale.Refusedf("%s was changed by someone else meanwhile: it is left as it is", path),
			"another recast, or git, was at work here. Run the same command again: finished builds are not repeated")
	}
	return WriteLock(path, l)
}

func writeLock(path string, l Lock, mode fs.FileMode) error {
	data, err := formatLock(l)
	if err != nil {
		return err
	}
	return replaceFile(path, data, mode)
}

func formatLock(l Lock) ([]byte, error) {
	l.Version = lockVersion
	l.Checksum = l.checksum()
	data, err := yaml.Dump(l, yaml.WithV4Defaults(), yaml.WithLineWidth(-1))
	if err != nil {
		return nil, err
	}
	header := lockHeader
	if l.HoldsSecrets() {
		header = secretHeader
	}
	return append([]byte(header), data...), nil
}

// ParseLock reads the text of a lock. name is for errors. ParseLock checks that the lock's checksum, and each lock
// hash, matches the lock's content.
func ParseLock(name string, data []byte) (Lock, error) {
	root, err := singleDocument(name, data)
	if err != nil {
		return Lock{}, err
	}
	at := place{file: name, root: root}
	// The version is checked first, so that a newer format is not reported as unknown keys.
	if v := child(root, "version"); v == nil || v.Value != fmt.Sprint(lockVersion) {
		return Lock{}, at.errorf([]any{"version"}, "this recast reads locks of version %d only", lockVersion)
	}
	var l Lock
	if err := yaml.Load(data, &l, yaml.WithV4Defaults(), yaml.WithKnownFields(), yaml.WithUniqueKeys()); err != nil {
		return Lock{}, problems(name, err)
	}
	if err := l.check(at); err != nil {
		return Lock{}, err
	}
	return l, nil
}

// check recomputes everything in a lock that can be computed.
func (l Lock) check(at place) error {
	var errs []error
	bad := func(path []any, format string, args ...any) {
		errs = append(errs, at.errorf(path, format, args...))
	}
	for key, value := range map[string]string{"talos": l.Talos, "arch": l.Arch, "platform": l.Platform} {
		if !regexp.MustCompile(`^[0-9A-Za-z.-]+$`).MatchString(value) {
			bad([]any{key}, "%s: %q is not one", key, value)
		}
	}
	if l.SecureBoot != isHex(l.SecureBootKey) || !l.SecureBoot && l.SecureBootKey != "" {
		bad([]any{"secureBootKey"}, "secureBootKey: it must be a SHA-256 in hex with secureBoot, and absent without it")
	}
	if slices.ContainsFunc(l.Signers, func(s string) bool { return !isHex(s) }) {
		bad([]any{"signers"}, "signers: each must be a SHA-256 in hex")
	}
	if len(l.Schematics) == 0 {
		bad([]any{"schematics"}, "schematics: none")
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	for _, name := range l.Names() {
		l.Schematics[name].check(l, func(key, format string, args ...any) {
			bad([]any{"schematics", name, key}, "schematics."+name+"."+key+": "+format, args...)
		})
	}
	if len(errs) == 0 && l.Checksum != l.checksum() {
		bad([]any{"checksum"}, "the file was cut off or edited by hand: its checksum differs")
	}
	return fault.As(fault.Config, errors.Join(errs...))
}

func (e Locked) check(l Lock, bad func(key, format string, args ...any)) {
	s, err := Parse("schematic", []byte(e.Schematic))
	switch {
	case err != nil:
		bad("schematic", "%w", err)
		return
	case s.Canonical() != e.Schematic:
		bad("schematic", "it is not in its canonical form")
	case s.lockHash() != e.LockHash:
		bad("schematic", "its last kernel argument is not %s%s", lockArg, e.LockHash)
	}
	e.checkContent(bad)
	if want := lockHashOf(e); want != e.LockHash {
		bad("lockHash", "it is %s, but the extensions make %s", e.LockHash, want)
	}
	if want := s.ID(); want != e.SchematicID {
		bad("schematicID", "it is %s, but the schematic makes %s", e.SchematicID, want)
	}
	if want := buildIDOf(l, e); want != e.BuildID {
		bad("buildID", "it is %s, but the entry makes %s", e.BuildID, want)
	}
	if _, digest, ok := strings.Cut(e.Installer, "@"); e.Installer != "" && (!ok || !IsDigest(digest)) {
		bad("installer", "%q does not end in a digest", e.Installer)
	}
	if e.Signer != "" && (!isHex(e.Signer) || e.Installer == "") {
		bad("signer", "%q is not the SHA-256 of a key that signed the installer", e.Signer)
	}
	if want := isoNameOf(l, e); want != e.ISO.Name {
		bad("iso", "it is named %q, not %q", e.ISO.Name, want)
	}
	if (e.ISO.SHA256 == "") != (e.ISO.SizeBytes == 0) || e.ISO.SizeBytes < 0 ||
		e.ISO.SHA256 != "" && !isHex(e.ISO.SHA256) {
		bad("iso", "sha256 and sizeBytes contradict each other")
	}
	if e.Disk != (Disk{}) {
		e.Disk.check(l.DiskName(e), bad)
	}
}

// check reports values that no disk image with that name can have. A recorded disk image has all its values.
func (d Disk) check(name string, bad func(key, format string, args ...any)) {
	if d.Name != name {
		bad("disk", "it is named %q, not %q", d.Name, name)
	}
	if !isHex(d.SHA256) || d.SizeBytes <= 0 || d.DiskBytes <= 0 {
		bad("disk", "sha256, sizeBytes and diskBytes are not those of an image")
	}
}

func (e Locked) checkContent(bad func(key, format string, args ...any)) {
	explicit := false
	for _, x := range e.Extensions {
		if x.Name == "" || x.Ref == "" || !IsDigest(x.Digest) {
			bad("extensions", "%q (%s@%s) is not a whole extension", x.Name, x.Ref, x.Digest)
		}
		if explicit && !x.Explicit {
			bad("extensions", "%q is official, but comes after one that is not", x.Name)
		}
		explicit = explicit || x.Explicit
	}
	if o := e.Overlay; o != nil && (o.Name == "" || o.Ref == "" || !IsDigest(o.Digest)) {
		bad("overlay", "%q (%s@%s) is not a whole overlay", o.Name, o.Ref, o.Digest)
	}
	if e.Rebuild < 0 {
		bad("rebuild", "%d is not a count", e.Rebuild)
	}
}

// replaceFile writes a file completely or not at all.
func replaceFile(path string, data []byte, mode fs.FileMode) (err error) {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncDir(dir)
}

// syncDir makes a rename in dir survive a power failure.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Archive stores a lock in a directory of past locks, and creates the directory. It replaces an archived lock of the
// same builds.
func Archive(dir string, l Lock) error {
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		err = writeLock(filepath.Join(dir, l.Key()+".lock"), l, 0o600)
	}
	if err != nil {
		return fmt.Errorf("keep the lock: %w", err)
	}
	return nil
}

// Learn archives a lock that was the current one at the time at, such as a lock from git's history. It keeps a lock of
// the same builds that is already in the directory.
func Learn(dir string, l Lock, at time.Time) error {
	file := filepath.Join(dir, l.Key()+".lock")
	if _, err := os.Stat(file); err == nil {
		return nil
	}
	if err := Archive(dir, l); err != nil {
		return err
	}
	return os.Chtimes(file, at, at)
}

// History is what past and current locks say about the images that nodes may still run.
type History struct {
	locks  []Lock
	byHash map[string]Locked
}

// Locks returns the locks of the history.
func (h History) Locks() []Lock { return slices.Clone(h.locks) }

// ReadHistory reads the past locks of a directory, which need not exist, and adds others. A lock hash proves digests,
// not names: of two locks with the same hash, the one that comes first names the extensions.
func ReadHistory(dir string, others ...Lock) (History, error) {
	h := History{byHash: map[string]Locked{}}
	files, err := filepath.Glob(filepath.Join(dir, "*.lock"))
	if err != nil {
		return h, fault.Configf("list past locks: %w", err)
	}
	var errs []error
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			errs = append(errs, fault.Configf("read a past lock: %w", err))
			continue
		}
		l, err := ParseLock(file, data)
		if err != nil {
			errs = append(errs, fault.WithHint(err, "%s is a past lock, kept to show what changed: it can be removed", file))
			continue
		}
		h.add(l)
	}
	for _, l := range others {
		h.add(l)
	}
	return h, errors.Join(errs...)
}

func (h *History) add(l Lock) {
	h.locks = append(h.locks, l)
	for _, e := range l.Schematics {
		if _, known := h.byHash[e.LockHash]; !known {
			h.byHash[e.LockHash] = e
		}
	}
}

// ByLockHash returns a schematic whose image carries this lock hash ("sha256-…"): its extensions, overlay and
// rebuilds are those of the image. ok is false if no known lock has the hash.
func (h History) ByLockHash(hash string) (e Locked, ok bool) {
	e, ok = h.byHash[hash]
	e.Extensions = slices.Clone(e.Extensions)
	return e, ok
}

// Previous returns the lock to go back to: the most recently archived lock, in a directory of past locks, of other
// builds than l's. found is false if there is none.
func Previous(dir string, l Lock) (previous Lock, found bool, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.lock"))
	if err != nil {
		return Lock{}, false, fault.Configf("list past locks: %w", err)
	}
	changed := map[string]time.Time{}
	for _, file := range files {
		info, err := os.Stat(file)
		if err != nil {
			return Lock{}, false, fault.Configf("read a past lock: %w", err)
		}
		changed[file] = info.ModTime()
	}
	slices.SortFunc(files, func(a, b string) int { return changed[b].Compare(changed[a]) })
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return Lock{}, false, fault.Configf("read a past lock: %w", err)
		}
		past, err := ParseLock(file, data)
		if err != nil {
			return Lock{}, false, fmt.Errorf("find the lock before this one: %w", err)
		}
		if past.Key() != l.Key() {
			return past, true, nil
		}
	}
	return Lock{}, false, nil
}

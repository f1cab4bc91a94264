package schematics

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/savefile"
)

// Lock is the file recast.lock: schematics resolved against one Talos version.
type Lock struct {
	Version  int    `yaml:"version" json:"version"` // of the file format
	Talos    string `yaml:"talos" json:"talos"`     // "v1.13.9"
	Arch     string `yaml:"arch" json:"arch"`
	Platform string `yaml:"platform" json:"platform"`
	// Broken says that the factory has marked this Talos version as broken since it was locked, as far as recast lock
	// knows: a plan says so without asking the factory.
	Broken     bool `yaml:"broken,omitempty" json:"broken,omitempty"`
	SecureBoot bool `yaml:"secureBoot,omitempty" json:"secureBoot,omitempty"`
	// SecureBootKey is the SHA-256, in hex, of the DER certificate with which the
	// factory signs images for Secure Boot; "" without it.
	SecureBootKey string `yaml:"secureBootKey,omitempty" json:"secureBootKey,omitempty"`
	// Imager is what the imager's builds are made with; zero if it builds none. No build ID depends on it: a lock from
	// before it was recorded names the same builds.
	Imager Imager `yaml:"imager,omitempty" json:"imager,omitzero"`
	// Signers are the keys, as in Locked, that signed the installers of the previous
	// lock: a rebuilt installer must not silently have another signer.
	Signers    []string          `yaml:"signers,omitempty" json:"signers,omitempty"`
	Schematics map[string]Locked `yaml:"schematics" json:"schematics"` // by their names in the config
	// Checksum covers everything above it, to detect a file that was truncated or edited by hand. WriteLock sets it.
	Checksum string `yaml:"checksum" json:"checksum"`
}

// Imager names what Talos comes from where its imager builds, each as repository@digest.
type Imager struct {
	Image string `yaml:"image,omitempty" json:"image,omitempty"` // of the imager; "" for a program of the user
	Base  string `yaml:"base,omitempty" json:"base,omitempty"`   // installer
}

// Locked is one schematic of a lock: exactly one image.
type Locked struct {
	File        string `yaml:"file" json:"file"`
	BuildID     string `yaml:"buildID" json:"buildID"`         // 64 hex digits
	SchematicID string `yaml:"schematicID" json:"schematicID"` // as we compute it; the factory's ID must be equal
	LockHash    string `yaml:"lockHash" json:"lockHash"`       // "sha256-…"
	// Extensions are the official ones, sorted by name, and then the explicit ones
	// in the order of recast.yaml, which is their build order.
	Extensions []Extension `yaml:"extensions" json:"extensions"`
	Overlay    *Overlay    `yaml:"overlay,omitempty" json:"overlay,omitempty"`
	// Rebuild counts the requested rebuilds of the same content: a factory serves for ever what it has built under a name.
	Rebuild int `yaml:"rebuild,omitempty" json:"rebuild,omitempty"`
	// Installer and ISO are recorded once their content was verified.
	Installer string `yaml:"installer" json:"installer"` // repository@digest; "" until built
	// Signer is the SHA-256, in hex, of the DER public key whose signature of the installer was verified; "" without one.
	Signer string   `yaml:"signer,omitempty" json:"signer,omitempty"`
	ISO    BootFile `yaml:"iso" json:"iso"`
	// Disk is recorded like the ISO, but only if machines may boot it; otherwise it is zero.
	Disk Disk `yaml:"disk,omitempty" json:"disk,omitzero"`
	// Uploads are recorded where Proxmox may not compare the files with the lock.
	Uploads   []Upload `yaml:"uploads,omitempty" json:"uploads,omitempty"`
	Schematic string   `yaml:"schematic" json:"schematic"` // canonical, with the lock hash
}

// Upload is the ISO or the disk image as Proxmox listed it after recast had uploaded it. Whoever may write to the
// storage can put anything under another name, or later under this one: then Changed differs.
type Upload struct {
	Name    string    `yaml:"name" json:"name"` // the locked file's, with a random part
	Storage string    `yaml:"storage" json:"storage"`
	Host    string    `yaml:"host,omitempty" json:"host,omitempty"` // "" if the storage is shared
	Changed time.Time `yaml:"changed" json:"changed"`               // by the clock of the storage
}

// randomPart is what NameUpload adds to a name.
var randomPart = regexp.MustCompile(`-[0-9a-f]{16}(\.[a-z0-9]+)$`)

// NameUpload returns a new name for an upload of the file, which nobody can have taken before.
func (f BootFile) NameUpload() string {
	var random [8]byte
	_, _ = rand.Read(random[:]) // never fails
	ext := filepath.Ext(f.Name)
	return fmt.Sprintf("%s-%x%s", strings.TrimSuffix(f.Name, ext), random, ext)
}

// Of returns the name in the lock of the uploaded file.
func (u Upload) Of() string { return randomPart.ReplaceAllString(u.Name, "$1") }

// UploadOf finds the record of the file that is called name in the lock, on a storage as a host sees it.
func (e Locked) UploadOf(name, storage, host string) (u Upload, found bool) {
	i := slices.IndexFunc(e.Uploads, func(u Upload) bool { return u.Of() == name && u.Storage == storage && (u.Host == "" || u.Host == host) })
	if i < 0 {
		return Upload{}, false
	}
	return e.Uploads[i], true
}

// Extension is a system extension pinned to the digest of its image index.
type Extension struct {
	Name    string `yaml:"name" json:"name"` // as a node lists it: "qemu-guest-agent"
	Version string `yaml:"version" json:"version"`
	Ref     string `yaml:"ref" json:"ref"` // repository: "ghcr.io/siderolabs/qemu-guest-agent"
	Digest  string `yaml:"digest" json:"digest"`
	// Explicit says that recast.yaml gives the extension's reference. No factory builds it: it is not official, or
	// has another digest.
	Explicit bool `yaml:"explicit,omitempty" json:"explicit,omitempty"`
	// Tag is the tag in an explicit reference; "" if the reference has only a digest.
	Tag string `yaml:"tag,omitempty" json:"tag,omitempty"`
}

// Overlay is an overlay pinned to the digest of its image index.
type Overlay struct {
	Name   string `yaml:"name" json:"name"` // "rpi_generic"
	Ref    string `yaml:"ref" json:"ref"`   // repository: "ghcr.io/siderolabs/sbc-raspberrypi"
	Digest string `yaml:"digest" json:"digest"`
}

// Official is the name by which schematics and Image Factories know the extension,
// "siderolabs/qemu-guest-agent", whatever registry it is read from.
func (e Extension) Official() string {
	_, path, _ := strings.Cut(e.Ref, "/")
	return path
}

// BootFile is a boot ISO, or the file of a disk image. SHA256 and SizeBytes are zero until the file was built.
type BootFile struct {
	Name      string `yaml:"name" json:"name"`
	SHA256    string `yaml:"sha256" json:"sha256"` // hex
	SizeBytes int64  `yaml:"sizeBytes" json:"sizeBytes"`
}

// Disk is a disk image, in the format qcow2, with Talos on it. It is what a machine's disk holds after the machine
// has booted the ISO and installed Talos.
type Disk struct {
	BootFile  `yaml:",inline"`
	DiskBytes int64 `yaml:"diskBytes" json:"diskBytes"` // size of the disk that the file describes
}

// lockVersion is the format of recast.lock that this program writes and reads.
const lockVersion = 1

// Names lists the lock's schematics, sorted.
func (l Lock) Names() []string { return slices.Sorted(maps.Keys(l.Schematics)) }

// Clone returns a copy that shares nothing mutable.
func (l Lock) Clone() Lock {
	l.Schematics, l.Signers = maps.Clone(l.Schematics), slices.Clone(l.Signers)
	for name, e := range l.Schematics {
		e.Extensions, e.Uploads = slices.Clone(e.Extensions), slices.Clone(e.Uploads)
		if e.Overlay != nil {
			e.Overlay = new(*e.Overlay)
		}
		l.Schematics[name] = e
	}
	return l
}

// Key identifies what the lock describes, built or not: two locks of the same builds
// under the same names have the same key.
func (l Lock) Key() string {
	var b strings.Builder
	for _, name := range l.Names() {
		b.WriteString(name + " " + l.Schematics[name].BuildID + "\n")
	}
	return Short(sum(b.String()))
}

// Pinned hashes what the lock pins, without what is recorded only when images are built.
func (l Lock) Pinned() string {
	type image struct{ BuildID, SchematicID, LockHash string }
	content := struct {
		Talos, Arch, Platform string
		SecureBoot            bool
		Schematics            map[string]image
		Imager                Imager `json:",omitzero"`
	}{l.Talos, l.Arch, l.Platform, l.SecureBoot, map[string]image{}, l.Imager}
	for name, e := range l.Schematics {
		content.Schematics[name] = image{e.BuildID, e.SchematicID, e.LockHash}
	}
	b, err := json.Marshal(content)
	if err != nil {
		return "" // impossible for plain data
	}
	return fmt.Sprintf("sha256-%x", sha256.Sum256(b))
}

// KernelArgs returns the kernel arguments that the image adds to Talos' own; recast's is the last one.
func (e Locked) KernelArgs() []string {
	s, err := Parse(e.File, []byte(e.Schematic))
	if err != nil { // impossible for a lock that was resolved or read
		return nil
	}
	return slices.Clone(s.doc.Customization.ExtraKernelArgs)
}

// EmbedsConfig reports whether the image embeds a machine configuration.
func (e Locked) EmbedsConfig() bool {
	s, err := Parse(e.File, []byte(e.Schematic))
	return err == nil && s.doc.Customization.EmbeddedMachineConfiguration != ""
}

// keepBuilt copies the results of old's builds to the same builds in l.
func (l *Lock) keepBuilt(old Lock) {
	built := map[string]Locked{}
	for _, e := range old.Schematics {
		if e.Installer != "" || e.ISO.SHA256 != "" || e.Disk != (Disk{}) {
			built[e.BuildID] = e
		}
	}
	for name, e := range l.Schematics {
		if o, ok := built[e.BuildID]; ok {
			e.Installer, e.Signer, e.ISO, e.Disk, e.Uploads = o.Installer, o.Signer, o.ISO, o.Disk, o.Uploads
			l.Schematics[name] = e
		}
	}
}

// AdoptUploads adds to builds without records of uploads those of other locks, the first first, if their files are the same.
func (l *Lock) AdoptUploads(others []Lock) {
	for name, e := range l.Schematics {
		for _, other := range others {
			for _, o := range other.Schematics {
				if len(e.Uploads) == 0 && o.BuildID == e.BuildID && o.ISO == e.ISO && o.Disk == e.Disk {
					e.Uploads = o.Uploads
				}
			}
		}
		l.Schematics[name] = e
	}
}

// keepSigners copies the verified signers of old. If the builds are the same, the list does not change.
func (l *Lock) keepSigners(old Lock) {
	l.Signers = old.Signers
	if l.Key() != old.Key() {
		l.Signers = old.KnownSigners()
	}
}

// KnownSigners returns the keys, sorted, that have signed installers of the lock,
// or, if none was verified yet, of the previous lock.
func (l Lock) KnownSigners() []string {
	var known []string
	for _, e := range l.Schematics {
		if e.Signer != "" {
			known = append(known, e.Signer)
		}
	}
	if len(known) == 0 {
		return slices.Clone(l.Signers)
	}
	slices.Sort(known)
	return slices.Compact(known)
}

// checksum hashes the lock as JSON. Unlike YAML's, JSON's form does not depend on the library.
func (l Lock) checksum() string {
	l.Checksum = ""
	text, err := json.Marshal(l)
	if err != nil {
		panic(err) // strings, numbers and maps of them always marshal
	}
	return "sha256-" + sum(string(text))
}

// shortLen is the number of digits of a build ID in names and displays.
const shortLen = 12

// Short is the part of a build ID that names and displays use.
func Short(buildID string) string { return buildID[:min(len(buildID), shortLen)] }

func sum(text string) string {
	s := sha256.Sum256([]byte(text))
	return hex.EncodeToString(s[:])
}

func idOf(canonical string) string { return sum(canonical) }

// lockHashOf returns the value of the recast.lock kernel argument. An extension that changes under the same version
// changes the value, and thereby the schematic ID.
func lockHashOf(e Locked) string {
	return "sha256-" + sum(strings.Join(append(officialDigests(e), otherContent(e)...), "\n"))
}

// buildIDOf hashes everything that determines an image's content.
func buildIDOf(l Lock, e Locked) string {
	var b strings.Builder
	fmt.Fprintf(&b, "talos %s\narch %s\nplatform %s\nsecureboot %t\n", l.Talos, l.Arch, l.Platform, l.SecureBoot)
	if l.SecureBootKey != "" {
		fmt.Fprintf(&b, "securebootkey %s\n", l.SecureBootKey)
	}
	for _, d := range officialDigests(e) {
		fmt.Fprintf(&b, "extension %s\n", d)
	}
	for _, line := range otherContent(e) {
		b.WriteString(line + "\n")
	}
	b.WriteString("schematic\n")
	b.WriteString(e.Schematic)
	return sum(b.String())
}

// isoNameOf is the name of a build's boot ISO wherever it is stored.
func isoNameOf(l Lock, e Locked) string { return l.nameOf(e) + ".iso" }

// DiskName is the name of a build's disk image wherever it is stored. Proxmox takes the format of a disk image from
// the name.
func (l Lock) DiskName(e Locked) string { return l.nameOf(e) + ".qcow2" }

func (l Lock) nameOf(e Locked) string {
	return fmt.Sprintf("recast-%s-%s-%s-%s", l.Talos, Short(e.BuildID), l.Platform, l.Arch)
}

// officialDigests returns the digests of the official extensions, sorted: the schematic's text defines their order.
func officialDigests(e Locked) []string {
	digests := make([]string, 0, len(e.Extensions))
	for _, x := range e.Extensions {
		if !x.Explicit {
			digests = append(digests, x.Digest)
		}
	}
	slices.Sort(digests)
	return digests
}

// otherContent returns a line for each part of an image other than official extensions, in build order. If there are
// rebuilds, a last line counts them: a rebuild gives the same content another name.
func otherContent(e Locked) []string {
	var lines []string
	for _, x := range e.Extensions {
		if x.Explicit {
			lines = append(lines, "explicit "+x.Digest)
		}
	}
	if e.Overlay != nil {
		lines = append(lines, "overlay "+e.Overlay.Name+" "+e.Overlay.Digest)
	}
	if e.Rebuild > 0 {
		lines = append(lines, fmt.Sprintf("rebuild %d", e.Rebuild))
	}
	return lines
}

// isHex reports whether s is a SHA-256 in hex.
func isHex(s string) bool { return IsDigest("sha256:" + s) }

// IsDigest reports whether s is a complete sha256 digest: "sha256:" and 64 hex digits.
func IsDigest(s string) bool { return regexp.MustCompile(`^sha256:[0-9a-f]{64}$`).MatchString(s) }

// Customization is what a schematic requests of an image in addition to extensions.
type Customization struct {
	KernelArgs     []string // recast's own is the last
	Meta           []MetaValue
	Bootloader     string         // of a boot ISO: "sd-boot", "grub", "dual-boot"; "": Talos' own choice
	OverlayOptions map[string]any // of the overlay, if there is one
	// EmbeddedConfigSHA256 is the SHA-256, in hex, of the machine configuration embedded in the image; "" without one.
	EmbeddedConfigSHA256 string
}

// MetaValue is an initial value in the META partition.
type MetaValue struct {
	Key   uint8
	Value string
}

// Customization reads the locked schematic.
func (e Locked) Customization() (Customization, error) {
	s, err := Parse(e.File, []byte(e.Schematic))
	if err != nil {
		return Customization{}, fmt.Errorf("read the locked schematic: %w", err)
	}
	c := Customization{
		KernelArgs:     slices.Clone(s.doc.Customization.ExtraKernelArgs),
		OverlayOptions: maps.Clone(s.doc.Overlay.Options),
	}
	if b := s.doc.Customization.Bootloader; b != 0 {
		c.Bootloader = b.String()
	}
	if config := s.doc.Customization.EmbeddedMachineConfiguration; config != "" {
		c.EmbeddedConfigSHA256 = sum(config)
	}
	for _, m := range s.doc.Customization.Meta {
		c.Meta = append(c.Meta, MetaValue(m))
	}
	return c, nil
}

// NoDisk says why no disk image of a schematic of this lock is made; "" if a disk image can be made.
func (l Lock) NoDisk(e Locked, byImager bool) string {
	s, err := Parse(e.File, []byte(e.Schematic))
	if err != nil { // impossible for a lock that was resolved or read
		return err.Error()
	}
	custom := s.doc.Customization
	switch size := custom.DiskImage.SectorSize; {
	case byImager && beforeLoopless.MatchString(l.Talos):
		return "before Talos v1.13 the imager needs loop devices for one, and recast gives it none"
	case custom.Bootloader.String() == "grub":
		return "its bootloader is grub, and what GRUB boots from a disk can't be compared with the lock"
	case size != 0 && size != 512:
		return fmt.Sprintf("its diskImage.sectorSize is %d, and Proxmox' disks have 512", size)
	}
	return ""
}

// beforeLoopless matches the versions whose buildImage in siderolabs/talos pkg/imager/out.go attaches loop devices.
var beforeLoopless = regexp.MustCompile(`^v1\.1[0-2]\.`)

// BuildOrder lists the extensions in build order: those that the schematic names, in
// its order, then the other explicit ones.
func (e Locked) BuildOrder() ([]Extension, error) {
	s, err := Parse(e.File, []byte(e.Schematic))
	if err != nil {
		return nil, fmt.Errorf("read the locked schematic: %w", err)
	}
	var order []Extension
	named := map[int]bool{}
	for _, name := range s.Extensions() {
		i := e.official(name)
		if i < 0 {
			i = e.official(renamed(name))
		}
		if i < 0 {
			return nil, fmt.Errorf("the locked schematic names extension %q, but the lock has no digest for it", name)
		}
		order, named[i] = append(order, e.Extensions[i]), true
	}
	for i, x := range e.Extensions {
		if x.Explicit && !named[i] {
			order = append(order, x)
		}
	}
	return order, nil
}

// official returns the index of the extension that schematics and factories know by name. It prefers an extension
// with the digest of the list to one with a digest that recast.yaml gives. It returns -1 if there is none.
func (e Locked) official(name string) int {
	i := slices.IndexFunc(e.Extensions, func(x Extension) bool { return !x.Explicit && x.Official() == name })
	if i >= 0 {
		return i
	}
	return slices.IndexFunc(e.Extensions, func(x Extension) bool { return x.Official() == name })
}

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
	return savefile.Replace(path, data, mode)
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
	for key, ref := range map[string]string{"image": l.Imager.Image, "base": l.Imager.Base} {
		if _, digest, _ := strings.Cut(ref, "@"); ref != "" && !IsDigest(digest) {
			bad([]any{"imager", key}, "imager.%s: %q does not end in a digest", key, ref)
		}
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
	for _, u := range e.Uploads {
		if of := u.Of(); of == u.Name || of != e.ISO.Name && of != l.DiskName(e) || u.Storage == "" {
			bad("uploads", "%q on %q is no upload of the ISO or the disk image", u.Name, u.Storage)
		}
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

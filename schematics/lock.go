package schematics

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
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
	// Signers are the keys, as in Locked, that signed the installers of the previous
	// lock: a rebuilt installer must not silently have another signer.
	Signers    []string          `yaml:"signers,omitempty" json:"signers,omitempty"`
	Schematics map[string]Locked `yaml:"schematics" json:"schematics"` // by their names in the config
	// Checksum covers everything above it, to detect a file that was truncated or edited by hand. WriteLock sets it.
	Checksum string `yaml:"checksum" json:"checksum"`
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
	// Rebuild counts the requested rebuilds of the same content: a factory serves
	// for ever what it has built under a name.
	Rebuild int `yaml:"rebuild,omitempty" json:"rebuild,omitempty"`
	// Installer and ISO are recorded once their content was verified.
	Installer string `yaml:"installer" json:"installer"` // repository@digest; "" until built
	// Signer is the SHA-256, in hex, of the DER public key whose signature of the
	// installer was verified; "" without one.
	Signer string   `yaml:"signer,omitempty" json:"signer,omitempty"`
	ISO    BootFile `yaml:"iso" json:"iso"`
	// Disk is recorded like the ISO, but only if machines may boot it; otherwise it is zero.
	Disk      Disk   `yaml:"disk,omitempty" json:"disk,omitzero"`
	Schematic string `yaml:"schematic" json:"schematic"` // canonical, with the lock hash
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
		e.Extensions = slices.Clone(e.Extensions)
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
	}{l.Talos, l.Arch, l.Platform, l.SecureBoot, map[string]image{}}
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
			e.Installer, e.Signer, e.ISO, e.Disk = o.Installer, o.Signer, o.ISO, o.Disk
			l.Schematics[name] = e
		}
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
func IsDigest(s string) bool {
	return regexp.MustCompile(`^sha256:[0-9a-f]{64}$`).MatchString(s)
}

// Customization is what a schematic requests of an image in addition to extensions.
type Customization struct {
	KernelArgs     []string // recast's own is the last
	Meta           []MetaValue
	Bootloader     string         // of a boot ISO: "sd-boot", "grub", "dual-boot"; "": Talos' own choice
	OverlayOptions map[string]any // of the overlay, if there is one
	// EmbeddedConfigSHA256 is the SHA-256, in hex, of the machine configuration embedded in the image; "" without
	// one.
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

package schematics

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
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
	// Checksum covers everything above it, to detect a file that was truncated or
	// edited by hand. WriteLock sets it.
	Checksum string `yaml:"checksum" json:"checksum"`
}

// Locked is one schematic of a lock: exactly one image.
type Locked struct {
	File        string `yaml:"file" json:"file"`
	BuildID     string `yaml:"buildID" json:"buildID"`         // 64 hex digits
	SchematicID string `yaml:"schematicID" json:"schematicID"` // as we compute it; the factory's must be equal
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
	// Explicit: its reference is given in recast.yaml, and no factory builds it: it
	// is not official, or has another digest.
	Explicit bool `yaml:"explicit,omitempty" json:"explicit,omitempty"`
	// Tag is the one in an explicit reference; "" if that has only a digest.
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

// BootFile is a boot ISO, or the file of a disk image. SHA256 and SizeBytes are zero until it was built.
type BootFile struct {
	Name      string `yaml:"name" json:"name"`
	SHA256    string `yaml:"sha256" json:"sha256"` // hex
	SizeBytes int64  `yaml:"sizeBytes" json:"sizeBytes"`
}

// Disk is a disk image, in the format qcow2, with Talos on it: what a machine has that booted the
// ISO and installed Talos.
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

// keepBuilt copies the results of builds that old has, too.
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

// keepSigners copies the verified signers. Locking the same builds changes nothing.
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

// checksum hashes JSON, whose form, unlike YAML's, does not depend on the library.
func (l Lock) checksum() string {
	l.Checksum = ""
	text, err := json.Marshal(l)
	if err != nil {
		panic(err) // strings, numbers and maps of them always marshal
	}
	return "sha256-" + sum(string(text))
}

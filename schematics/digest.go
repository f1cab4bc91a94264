package schematics

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// shortLen is how many digits of a build ID names and displays show.
const shortLen = 12

// Short is the part of a build ID that names and displays use.
func Short(buildID string) string { return buildID[:min(len(buildID), shortLen)] }

func sum(text string) string {
	s := sha256.Sum256([]byte(text))
	return hex.EncodeToString(s[:])
}

func idOf(canonical string) string { return sum(canonical) }

// lockHashOf is the value of the recast.lock kernel argument: an extension that
// changes under the same version changes it, and with it the schematic ID.
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

// DiskName is the name of a build's disk image wherever it is stored. Proxmox takes the
// format of a disk image from it.
func (l Lock) DiskName(e Locked) string { return l.nameOf(e) + ".qcow2" }

func (l Lock) nameOf(e Locked) string {
	return fmt.Sprintf("recast-%s-%s-%s-%s", l.Talos, Short(e.BuildID), l.Platform, l.Arch)
}

// officialDigests are sorted: the schematic's text defines the order.
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

// otherContent returns a line for each part of an image other than official
// extensions, in build order, and a line for what gives the same content another
// name.
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

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

// lockHashOf is the value of the recast.lock kernel argument: extensions that
// change under the same version change it, and with it the schematic ID.
func lockHashOf(extensions []Extension) string {
	return "sha256-" + sum(strings.Join(sortedDigests(extensions), "\n"))
}

// buildIDOf hashes all that decides what an image holds.
func buildIDOf(l Lock, e Locked) string {
	var b strings.Builder
	fmt.Fprintf(&b, "talos %s\narch %s\nplatform %s\nsecureboot %t\n", l.Talos, l.Arch, l.Platform, l.SecureBoot)
	for _, d := range sortedDigests(e.Extensions) {
		fmt.Fprintf(&b, "extension %s\n", d)
	}
	b.WriteString("schematic\n")
	b.WriteString(e.Schematic)
	return sum(b.String())
}

// isoNameOf is the name of a build's boot ISO wherever it is kept.
func isoNameOf(l Lock, e Locked) string {
	return fmt.Sprintf("recast-%s-%s-%s-%s.iso", l.Talos, Short(e.BuildID), l.Platform, l.Arch)
}

func sortedDigests(extensions []Extension) []string {
	digests := make([]string, 0, len(extensions))
	for _, e := range extensions {
		digests = append(digests, e.Digest)
	}
	slices.Sort(digests)
	return digests
}

// IsDigest says whether s is a whole sha256 digest: "sha256:" and 64 hex digits.
func IsDigest(s string) bool {
	return regexp.MustCompile(`^sha256:[0-9a-f]{64}$`).MatchString(s)
}

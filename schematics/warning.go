package schematics

import "slices"

// WarningKind says what a warning is about.
type WarningKind string

// The kinds of warning.
const (
	FactoryDiffers       WarningKind = "factory-differs"         // it would build an extension or overlay from another digest
	Republished          WarningKind = "republished"             // an official extension's digest in the registry's list is not the locked one
	TagMoved             WarningKind = "tag-moved"               // from the digest given with it, or the tag is gone
	Renamed              WarningKind = "renamed"                 // an official extension has a new name
	BrokenVersion        WarningKind = "broken-version"          // the factory marked the locked Talos version as broken, or its makers withdrew it
	SecureBootKeyDiffers WarningKind = "secure-boot-key-differs" // the factory signs with another key than the locked one
)

// Warning is a problem with a lock that could be made nevertheless.
type Warning struct {
	Kind    WarningKind `json:"kind"`
	Subject string      `json:"subject"`          // an extension, "siderolabs/qemu-guest-agent", an overlay, an image, a Talos version
	Locked  string      `json:"locked,omitempty"` // digest that the lock has
	Found   string      `json:"found,omitempty"`  // current digest; "": there is none
	Text    string      `json:"text"`
	Hint    string      `json:"hint"`
}

func (w Warning) String() string { return w.Text }

// warningList drops duplicates: schematics often share extensions.
type warningList []Warning

func (l *warningList) add(list ...Warning) {
	for _, w := range list {
		if !slices.Contains(*l, w) {
			*l = append(*l, w)
		}
	}
}

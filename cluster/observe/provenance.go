package observe

import (
	"context"
	"net/netip"
	"slices"

	"github.com/recast-sh/recast/cluster"
)

// ClaimReader reads what running machines say about their images.
type ClaimReader interface {
	// Claims reads what the machine at addr says about the image that it runs. It
	// refuses unless that machine has the UUID.
	Claims(ctx context.Context, addr netip.Addr, uuid string) (Claims, error)
}

// Claims is what a running machine says about its image. The builder of the image wrote all of it.
type Claims struct {
	TalosVersion string
	Arch         string
	Platform     string
	Layers       []ExtensionLayer // as its extensions.yaml lists them
	Booted       BootClaims
	// Factory is the resource that Talos 1.14 and later makes from the schematic's entry in
	// Layers; nil: there is none.
	Factory *FactoryClaim
}

// ExtensionLayer is one entry of a machine's list of extensions.
type ExtensionLayer struct {
	Name, Version, Author string
	ExtraInfo             string // only in the schematic's own entry: the schematic
}

// BootClaims is how the machine says it was booted.
type BootClaims struct {
	Entry      string // boot loader entry, lower-case; "": it does not say
	Next       string // entry that the next boot takes; "": it does not say
	UKI        *bool  // booted from a unified kernel image; nil: it does not say
	SecureBoot bool
	// Locks are the values of recast.lock on the kernel's command line; Cmdline says whether
	// that could be read.
	Locks   []string
	Cmdline bool
}

// FactoryClaim is the resource ImageFactorySchematic.
type FactoryClaim struct {
	SchematicID, Flavor, URL string
}

// KnownBuild is one build of an available lock.
type KnownBuild struct {
	Lock      string // file: "recast.lock", or that of a past lock
	Present   bool   // the lock is recast.lock
	Shared    bool   // by another machine: only what its hashes prove is believed
	Schematic string // its name in the configuration
	File      string
	Build     cluster.Build
	ISOSHA256 string // "": not built
	Signer    string // fingerprint of the key that signed the installer; "": not verified
}

// Certainty is how well a link of the chain holds.
type Certainty string

// Proven was recomputed from bytes; Claimed is what the image says about itself and nothing
// contradicts; Unknown has no source; Contradicted conflicts with the rest.
const (
	Proven       Certainty = "proven"
	Claimed      Certainty = "claimed"
	Unknown      Certainty = "unknown"
	Contradicted Certainty = "contradicted"
)

// Origin says who made an image, as far as that can be told.
type Origin string

// FromLock is a build of an available lock; FromOtherLock has a recast.lock value of no
// available lock; FromSchematic is another schematic without one; FromImager has extensions but
// no schematic, FromRelease neither; FromNowhere contradicts itself.
const (
	FromLock      Origin = "lock"
	FromOtherLock Origin = "other-lock"
	FromSchematic Origin = "schematic"
	FromImager    Origin = "imager"
	FromRelease   Origin = "release"
	FromNowhere   Origin = "contradictory"
)

// ProvenanceLink is one link of the chain from a lock to a running node.
type ProvenanceLink struct {
	Name      string    `json:"name"` // stable for scripts: "lock", "schematic", …
	Certainty Certainty `json:"certainty"`
	Text      string    `json:"text"`
	Details   []string  `json:"details,omitempty"`
}

// Provenance is the chain from a lock to a running node.
type Provenance struct {
	Node    string           `json:"node"`
	VM      string           `json:"vm"`
	Address netip.Addr       `json:"address"`
	Origin  Origin           `json:"origin"`
	Build   string           `json:"build,omitempty"` // build ID that it claims; "": no lock at hand made it
	Wanted  string           `json:"wanted,omitempty"`
	Unread  string           `json:"unread,omitempty"` // why its files could not be compared
	Summary []string         `json:"summary"`          // what is proven, claimed, unknown and contradicted, in sentences
	Links   []ProvenanceLink `json:"links"`
}

// Contradicted says whether some link conflicts with the rest.
func (p Provenance) Contradicted() bool {
	return slices.ContainsFunc(p.Links, func(l ProvenanceLink) bool { return l.Certainty == Contradicted })
}

// Described is what a schematic asks for.
type Described struct {
	Extensions []string
	Args       []string // names of kernel arguments: a value may be a token
}

// Trail is everything that a chain is made from.
type Trail struct {
	Wanted   *KnownBuild  // what recast.lock wants of the node; nil: there is no lock
	Known    []KnownBuild // builds of every available lock, including the present one
	Claims   Claims
	Describe func(schematic string) (d Described, ok bool) // describes a schematic that no available lock has
	Files    *FileCheck                                    // compared with the build that it claims; nil: not compared
	// Unread is why the files could not be compared although that was requested.
	Unread string
}

// Trace makes the chain.
func Trace(t Trail) Provenance {
	c := t.judge()
	p := Provenance{Origin: c.origin, Unread: t.Unread}
	if t.Wanted != nil {
		p.Wanted = t.Wanted.Build.ID
	}
	if c.known != nil {
		p.Build = c.known.Build.ID
	}
	p.Links = append(p.Links, t.lockLink())
	p.Links = append(p.Links, c.schematicLinks()...)
	p.Links = append(p.Links, c.extensionsLink(), c.talosLink())
	p.Links = append(p.Links, c.bootLinks()...)
	p.Links = append(p.Links, c.filesLink())
	if p.Contradicted() && c.known == nil && c.origin != FromOtherLock {
		p.Origin = FromNowhere
	}
	p.Summary = c.summary(p)
	return p
}

// Claimant is the build whose files the machine claims to have: that of the lock that its
// schematic names; nil if no available lock has it.
func (t Trail) Claimant() *KnownBuild { return t.judge().known }

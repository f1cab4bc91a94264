package observe

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/words"
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

// BootClaims is what the machine says about its boot.
type BootClaims struct {
	Entry      string // boot loader entry, lower-case; "": unknown
	Next       string // entry that the next boot takes; "": unknown
	UKI        *bool  // booted from a unified kernel image; nil: unknown
	SecureBoot bool
	// Locks are the values of recast.lock on the kernel's command line; Cmdline says whether the command line could
	// be read.
	Locks   []string
	Cmdline bool
}

// FactoryClaim is the resource ImageFactorySchematic.
type FactoryClaim struct {
	SchematicID, Flavor, URL string
}

// KnownBuild is one build of an available lock.
type KnownBuild struct {
	Lock      string // file: "recast.lock", or a past lock's
	Present   bool   // the lock is recast.lock
	Shared    bool   // by another machine: only what its hashes prove is believed
	Schematic string // name of the schematic in the configuration
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

// Origin says who made an image, as far as known.
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
	Build   string           `json:"build,omitempty"` // build ID that the node claims; "": no lock at hand made it
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

// Trail is everything from which a chain is made.
type Trail struct {
	Wanted   *KnownBuild  // what recast.lock wants of the node; nil: there is no lock
	Known    []KnownBuild // builds of every available lock, including the present one
	Claims   Claims
	Describe func(schematic string) (d Described, ok bool) // describes a schematic that no available lock has
	Files    *FileCheck                                    // compared with the claimed build; nil: not compared
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

// Claimant returns the build whose files the machine claims to have: that of the lock that its schematic names; nil
// if no available lock has that build.
func (t Trail) Claimant() *KnownBuild { return t.judge().known }

// The entries of a machine's list of extensions that are not extensions: the schematic, from
// the builder of the image, and the list of modules, if the image was built with modules.
const (
	schematicEntry = "schematic"
	modulesEntry   = "modules.dep"
)

// judged is a trail with the conclusions from its claims.
type judged struct {
	Trail
	origin  Origin
	entries []ExtensionLayer // of the schematic: one, unless the image contradicts itself
	lock    string           // "sha256-…" in the schematic
	known   *KnownBuild      // the build with exactly that schematic
	kin     *KnownBuild      // a build with the same extension digests, if known is nil
}

func (t Trail) judge() judged {
	j := judged{Trail: t}
	extensions := 0
	for _, l := range t.Claims.Layers {
		switch l.Name {
		case schematicEntry:
			j.entries = append(j.entries, l)
		case modulesEntry:
		default:
			extensions++
		}
	}
	switch {
	case len(j.entries) > 1:
		j.origin = FromNowhere
		return j
	case len(j.entries) == 0 && extensions > 0:
		j.origin = FromImager
		return j
	case len(j.entries) == 0:
		j.origin = FromRelease
		return j
	}
	e := cluster.SchematicEntry{ID: j.entries[0].Version, YAML: j.entries[0].ExtraInfo}
	j.lock = e.LockHash()
	j.known, j.kin = j.find(e.ID)
	switch {
	case j.known != nil:
		j.origin = FromLock
	case j.lock != "":
		j.origin = FromOtherLock
	default:
		j.origin = FromSchematic
	}
	return j
}

// find finds the build with a schematic. Several locks can have it, each for another Talos
// version: it prefers the version that runs, then the present lock.
func (j judged) find(schematicID string) (known, kin *KnownBuild) {
	builds := slices.Clone(j.Known)
	slices.SortStableFunc(builds, func(a, b KnownBuild) int {
		running := j.Claims.TalosVersion
		return cmp.Or(rank(a.Build.TalosVersion == running, b.Build.TalosVersion == running), rank(a.Present, b.Present))
	})
	for i, b := range builds {
		switch {
		case b.Build.SchematicID == schematicID && known == nil:
			known = &builds[i]
		case b.Build.LockHash == j.lock && j.lock != "" && kin == nil:
			kin = &builds[i]
		}
	}
	if known != nil {
		return known, nil
	}
	return nil, kin
}

// rank orders true before false.
func rank(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// idOf returns the ID of a schematic: the hash of its text, as Image Factory computes it.
func idOf(schematic string) string {
	sum := sha256.Sum256([]byte(schematic))
	return hex.EncodeToString(sum[:])
}

// imagerAuthor is the author of the schematic's entry in images that recast built with the
// Talos imager.
const imagerAuthor = "recast"

// builder says who built the image, according to the image.
func builder(author string) string {
	flavor, url, _ := strings.Cut(strings.TrimSuffix(author, ")"), " (")
	switch {
	case author == imagerAuthor:
		return "recast, with the Talos imager"
	case flavor == "" && url == "":
		return "nobody named"
	case url == "":
		return author
	}
	return flavor + " at " + url
}

// summary states the result of the chain in a few sentences, the worst first.
func (j judged) summary(p Provenance) []string {
	var out []string
	if p.Contradicted() {
		out = append(out, "contradicted: "+strings.Join(names(p.Links, Contradicted), ", ")+": what the node shows does not fit together, so that nothing which it says of its image can be relied on")
	}
	switch {
	case j.known != nil && j.Wanted != nil && j.known.Build.ID == j.Wanted.Build.ID:
		out = append(out, "it claims the build that recast.lock wants")
	case j.known != nil:
		out = append(out, fmt.Sprintf("it claims build %s of %s, not what recast.lock wants", words.Short(j.known.Build.ID), j.known.Lock))
	case j.origin == FromOtherLock:
		out = append(out, "it claims a lock that is not at hand: another machine's .recast, another branch or another project has it")
	case j.origin == FromSchematic:
		out = append(out, "it claims someone's schematic, which recast did not lock")
	case j.origin == FromImager:
		out = append(out, "it was built by hand with the Talos imager: what from is unknown")
	case j.origin == FromRelease:
		out = append(out, "it looks like an image of a Talos release, which nothing in it confirms")
	}
	if j.Files != nil && j.known != nil && j.Files.Same() {
		out = append(out, "proven: the bytes of its extensions' files. Not proven, only claimed: Talos itself, its kernel and its arguments")
	} else if !p.Contradicted() {
		out = append(out, "proven about the node: nothing, all of it is what the image says of itself")
	}
	return out
}

func names(links []ProvenanceLink, s Certainty) []string {
	var out []string
	for _, l := range links {
		if l.Certainty == s {
			out = append(out, l.Name)
		}
	}
	return out
}

package provenance

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
)

// The entries of a machine's list of extensions that are none: the schematic of
// whoever built the image, and the modules' list of whoever built it with modules.
const (
	schematicEntry = "schematic"
	modulesEntry   = "modules.dep"
)

// judged is a trail with what its claims point to.
type judged struct {
	Trail
	origin  Origin
	entries []ExtensionLayer // of the schematic: one, unless the image is a strange one
	lock    string           // "sha256-…" that the schematic carries
	known   *KnownBuild      // the build with that very schematic
	kin     *KnownBuild      // one of the same extension digests, where there is no known
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

// find looks for the build with a schematic: several locks can have it, each
// for another Talos version; the one that runs comes first, and the present lock.
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

// rank puts what is so before what is not.
func rank(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// idOf is the ID of a schematic: the hash of its text, as Image Factories compute it.
func idOf(schematic string) string {
	sum := sha256.Sum256([]byte(schematic))
	return hex.EncodeToString(sum[:])
}

// imagerAuthor is the author of the schematic's entry in images that recast has
// built with the Talos imager.
const imagerAuthor = "recast"

// builder says who built the image, by its own word.
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

package observe

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
)

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
	kin     *KnownBuild      // one with the same extension digests, if there is no known
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

// idOf is the ID of a schematic: the hash of its text, as Image Factory computes it.
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

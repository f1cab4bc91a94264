package registry

import (
	"cmp"
	"fmt"
	"slices"
)

// version is a Talos version: "v1.13.9".
type version struct{ major, minor, patch int }

func parseVersion(s string) (version, bool) {
	var v version
	n, err := fmt.Sscanf(s, "v%d.%d.%d", &v.major, &v.minor, &v.patch)
	return v, err == nil && n == 3 && v.String() == s
}

func (v version) String() string { return fmt.Sprintf("v%d.%d.%d", v.major, v.minor, v.patch) }

func (v version) compare(w version) int {
	return cmp.Or(cmp.Compare(v.major, w.major), cmp.Compare(v.minor, w.minor), cmp.Compare(v.patch, w.patch))
}

// nearest returns up to n released versions among tags, oldest first: those around
// the missing one; the newest ones if it is not a version.
func nearest(unknown string, tags []string, n int) []string {
	var versions []version
	for _, tag := range tags {
		if v, ok := parseVersion(tag); ok {
			versions = append(versions, v)
		}
	}
	slices.SortFunc(versions, version.compare)
	versions = slices.Compact(versions)
	at := len(versions)
	if want, ok := parseVersion(unknown); ok {
		at, _ = slices.BinarySearchFunc(versions, want, version.compare)
	}
	first := max(0, min(at-n+1, len(versions)-n))
	versions = versions[first:min(first+n, len(versions))]
	names := make([]string, 0, len(versions))
	for _, v := range versions {
		names = append(names, v.String())
	}
	return names
}

package pve

import (
	"regexp"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
)

// allocation matches a drive's value that makes Proxmox allocate a volume: "fast:10", in GiB.
var allocation = regexp.MustCompile(`^[^:,=]+:\d+(?:\.\d+)?$`)

func volid(value string) string {
	first, _, _ := strings.Cut(value, ",")
	return strings.TrimPrefix(first, "file=")
}

func allocates(key, value string) bool {
	return cluster.IsDiskKey(key) && allocation.MatchString(volid(value))
}

// sameValue reports whether a key holds the requested value in Proxmox's spelling:
// it reorders the options of drives and network cards, adds sizes and MAC addresses,
// and sorts tags.
func sameValue(key, want, now string) bool {
	switch {
	case want == now:
		return true
	case now == "":
		return false
	case key == "cipassword": // shown as asterisks
		return true
	case key == "tags":
		return slices.Equal(sortedParts(want, isListMark), sortedParts(now, isListMark))
	case key == "description":
		return strings.TrimRight(want, " \t\r\n") == strings.TrimRight(now, " \t\r\n")
	case allocates(key, want):
		storage, _, _ := strings.Cut(volid(want), ":")
		return strings.HasPrefix(volid(now), storage+":") && hasDriveOptions(want, now)
	case cluster.IsDiskKey(key) && strings.HasSuffix(volid(want), ":cloudinit"):
		d, err := cluster.ParseDisk(key, now)
		return err == nil && d.CloudInit() && d.Storage()+":cloudinit" == volid(want) && hasDriveOptions(want, now)
	case cluster.IsDiskKey(key):
		return volid(want) == volid(now) && hasDriveOptions(want, now)
	case strings.HasPrefix(key, "net"):
		wantModel, nowModel := volid(want), volid(now)
		return (strings.EqualFold(wantModel, nowModel) || strings.HasPrefix(nowModel, wantModel+"=")) && hasOptions(want, now)
	}
	return slices.Equal(sortedParts(want, isComma), sortedParts(now, isComma))
}

// hasOptions reports whether all requested options are present.
func hasOptions(want, now string) bool { return containsAll(optionsOf(want), optionsOf(now)) }

// hasDriveOptions is hasOptions for drives. It ignores what only controls the allocation.
func hasDriveOptions(want, now string) bool {
	asked := slices.DeleteFunc(cluster.DriveOptions(optionsOf(want)), func(o string) bool {
		name, _, _ := strings.Cut(o, "=")
		return name == "format" || name == "import-from"
	})
	return containsAll(asked, cluster.DriveOptions(optionsOf(now)))
}

func optionsOf(value string) []string {
	_, rest, _ := strings.Cut(value, ",")
	return strings.FieldsFunc(rest, isComma)
}

func containsAll(want, have []string) bool {
	return !slices.ContainsFunc(want, func(o string) bool { return !slices.Contains(have, o) })
}

func isComma(r rune) bool    { return r == ',' }
func isListMark(r rune) bool { return strings.ContainsRune(",; ", r) }

func sortedParts(s string, mark func(rune) bool) []string {
	parts := strings.FieldsFunc(s, mark)
	slices.Sort(parts)
	return slices.Compact(parts)
}

package talosapi

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"github.com/recast-sh/recast/internal/sim/artefact"
)

// Describe describes a disk's content in one line, without what every install or build regenerates (the UUIDs
// of the system partitions, the node's identity, the installer's digest), so that equal systems have equal
// descriptions. For data volumes it includes UUID and content; for an etcd member its name and whether it
// votes, not its random ID.
func Describe(content []byte) string {
	if len(content) == 0 {
		return "blank"
	}
	if strings.HasPrefix(string(content), nvramMagic) {
		return "NVRAM boots " + readVariables(content).LoaderEntryDefault
	}
	disk, err := artefact.ReadDisk(content)
	if err != nil {
		return "foreign " + digest(content)
	}
	parts := make([]string, 0, len(disk.Partitions))
	for _, p := range disk.Partitions {
		parts = append(parts, describePartition(p))
	}
	return strings.Join(parts, "; ")
}

func describePartition(p artefact.Partition) string {
	switch p.Label {
	case labelMeta:
		return strings.TrimSpace(p.Label + " " + string(p.Data))
	case labelEFI:
		var l loader
		if json.Unmarshal(p.Data, &l) != nil {
			return p.Label + " without boot entries"
		}
		var entries []string
		for _, e := range l.Entries {
			entries = append(entries, fmt.Sprintf("%s %.16s", e.Name, e.UKI))
		}
		boots := ""
		if l.Default != "" {
			boots = " boots " + l.Default + " of"
		}
		return fmt.Sprintf("%s%s [%s]", p.Label, boots, strings.Join(entries, ", "))
	case labelState:
		var s stateData
		if json.Unmarshal(p.Data, &s) != nil {
			return p.Label + " unreadable"
		}
		return p.Label + " config " + digest(imageDigest.ReplaceAll(s.Config, nil))
	}
	users, d := splitEtcd(p.Data)
	text := fmt.Sprintf("%s %s %s %s", p.Label, p.UUID, p.FilesystemUUID, digest(users))
	switch {
	case d == nil:
	case d.Learner:
		text += " etcd learner " + d.Name
	default:
		text += " etcd voter " + d.Name
	}
	return text
}

// imageDigest depends on the build time of an installer.
var imageDigest = regexp.MustCompile(`@sha256:[0-9a-f]{64}`)

func digest(b []byte) string { return fmt.Sprintf("%x", sha256.Sum256(b))[:16] }

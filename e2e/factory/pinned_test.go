package factory

import "strings"

// guestAgentAt is where the guest agent's program is on a node.
const guestAgentAt = "usr/local/lib/containers/qemu-guest-agent/qemu-ga"

// pin is an official extension by a digest of the user's choice.
type pin struct {
	name, version, digest string
	listed                string // tag that the list of official extensions has
	file, sum             string // by which its content differs from the listed one's
}

// pins are iscsi-tools as it was before it was published anew under its version, and an older version
// of the guest agent. The first is in recast.yaml alone; the schematic's file names the other, too.
func (s *stage) pins(iscsiTools string) []pin {
	s.t.Helper()
	const version = "11.0.1"
	older := guestAgentOf(version).index(s.t)
	s.core.push(s.t, "siderolabs/qemu-guest-agent:"+version, older)
	return []pin{
		{"iscsi-tools", "v0.2.0", iscsiTools, "v0.2.0", patched, checksum(random("iscsid 1 amd64", 120<<10))},
		{"qemu-guest-agent", version, digestOf(s.t, older), guestAgent().version, guestAgentAt, checksum(random("qemu-ga "+version+" amd64", 300<<10))},
	}
}

// references are the pins as recast.yaml names them.
func references(pins []pin) string {
	var b strings.Builder
	for _, p := range pins {
		b.WriteString(", 'ghcr.io/siderolabs/" + p.name + "@" + p.digest + "'")
	}
	return b.String()
}

// locksPins wants each pin in a schematic's lock, and nothing else of its name.
func (s *stage) locksPins(schematic string, pins []pin) {
	s.t.Helper()
	for _, p := range pins {
		if e := s.lock().Schematics[schematic].extension(s.t, p.name); e.Version != p.version || e.Digest != p.digest || !e.Explicit {
			s.t.Fatalf("schematic %s is locked to %+v, pinned to %s@%s", schematic, e, p.name, p.digest)
		}
	}
}

// holdsPins wants the pins' content in an installer, and that it is not what the list has by now.
func (s *stage) holdsPins(installer string, pins []pin) {
	s.t.Helper()
	for _, p := range pins {
		if listed := s.core.digest(s.t, "siderolabs/"+p.name+":"+p.listed); listed == "" || listed == p.digest {
			s.t.Fatalf("the list has %q of %s, which is pinned to %s: nothing is shown by that", listed, p.name, p.digest)
		}
		if got := built(s.t, installer, s.install, p.file); got != p.sum {
			s.t.Fatalf("%s does not hold /%s of %s@%s", installer, p.file, p.name, p.digest)
		}
		s.notes("zstd, cpio and unsquashfs find /%s of %s@%s", p.file, p.name, p.digest[:19])
	}
}

package factoryapi

import (
	"fmt"

	"github.com/recast-sh/recast/internal/sim/artefact"
)

// Official is a small set of official extensions, with fake content.
func Official() []artefact.Extension {
	const sidero = "Sidero Labs"
	return []artefact.Extension{
		service("iscsi-tools", "v0.2.0", sidero, "iscsid", "This system extension provides iscsi-tools."),
		service("qemu-guest-agent", "11.0.2", "Markus Reiter", "qemu-ga", "This system extension provides the QEMU Guest Agent service."),
		service("tailscale", "1.94.2", "Tailscale, Inc.", "tailscaled", "This system extension provides the Tailscale VPN service."),
		program("util-linux-tools", "2.41.2", sidero, "/usr/local/sbin/fstrim", "This system extension provides util-linux tools."),
		program("intel-ucode", "20260210", sidero, "/usr/lib/firmware/intel-ucode/06-55-04", "This system extension provides Intel microcode binaries."),
	}
}

// service is an extension that runs a container.
func service(name, version, author, binary, description string) artefact.Extension {
	return artefact.Extension{
		Name: name, Version: version, Author: author, Description: description,
		Files: map[string][]byte{
			"/usr/local/etc/containers/" + name + ".yaml": fmt.Appendf(nil,
				"name: %s\ncontainer:\n  entrypoint: ./%s\nrestart: always\n", name, binary),
			"/usr/local/lib/containers/" + name + "/" + binary: fmt.Appendf(nil, "\x7fELF %s %s\n", binary, version),
		},
	}
}

// program is an extension of one file.
func program(name, version, author, path, description string) artefact.Extension {
	return artefact.Extension{
		Name: name, Version: version, Author: author, Description: description,
		Files: map[string][]byte{path: fmt.Appendf(nil, "\x7fELF %s %s\n", path, version)},
	}
}

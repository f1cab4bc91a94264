package talos

import (
	"time"

	"github.com/siderolabs/talos/pkg/machinery/client"
	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
)

// Expires is when the certificate of a talosconfig's current context expires; zero
// if it has none that can be read.
func Expires(talosconfig []byte) time.Time {
	parsed, err := clientconfig.FromBytes(talosconfig)
	if err != nil || parsed.Contexts[parsed.Context] == nil {
		return time.Time{}
	}
	crt, err := client.CertificateFromConfigContext(parsed.Contexts[parsed.Context])
	if err != nil || crt == nil || crt.Leaf == nil {
		return time.Time{}
	}
	return crt.Leaf.NotAfter
}

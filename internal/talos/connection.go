package talos

import (
	"crypto/tls"
	"time"

	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
	"google.golang.org/grpc"
)

// conn is what all calls need to connect to a machine.
type conn struct {
	config    *clientconfig.Config // one context, without a proxy: dial handles that
	endpoints []string
	dial      DialFunc
	timeout   time.Duration
	grpc      []grpc.DialOption
	over      func(*tls.Config) []grpc.DialOption
	expires   time.Time // of the certificate; zero: there is none
	as        identity  // with the cluster's credentials
}

package kube

import (
	"net/http"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/recast-sh/recast/cluster/ownpod"
)

// conn is what all calls need to talk to the API.
type conn struct {
	api kubernetes.Interface
	// streams is for watches, which have no timeout.
	streams kubernetes.Interface

	host string
	poll time.Duration
	own  ownpod.Pod
	skip []string // as of Options
	base *http.Transport
	rt   http.RoundTripper // base with the credentials of the kubeconfig
	// direct reaches API servers at their own addresses.
	direct http.RoundTripper
}

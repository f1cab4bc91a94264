// Package page shows a fleet in a browser: its clusters, their rolls and the FleetRolls, as far as the
// objects in the operator's cache hold them. It has no way to change anything, and no login: kubectl
// port-forward reaches it, so Kubernetes decides who may.
package page

import (
	"context"
	"embed"
	"net"
	"net/http"
	"net/netip"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/recast-sh/recast/internal/redact"
	"github.com/recast-sh/recast/internal/web/frame"
)

// Site is the pages of a fleet.
type Site struct {
	frame   *frame.Frame
	objects client.Reader
	address netip.AddrPort
	Now     func() time.Time
}

// Every replica serves them, as it has the same objects.
var _ interface {
	manager.Runnable
	manager.LeaderElectionRunnable
} = (*Site)(nil)

//go:embed pages
var files embed.FS

// New makes a site of the objects in a cache.
func New(objects client.Reader, address netip.AddrPort, version string) (*Site, error) {
	f, err := frame.New(frame.Options{
		Name: "recast-operator", Of: "recast-operator", Ends: "kubectl port-forward", Where: "recast-operator " + version + ", times in UTC", Base: "/",
		Tabs:  [][2]string{{"", "Clusters"}, {"fleets", "Fleet rolls"}, {"runbooks", "Runbooks"}},
		Pages: files, Names: []string{"clusters", "cluster", "roll", "fleets", "fleet"},
		Hide: redact.New(nil).Text,
	})
	return &Site{frame: f, objects: objects, address: address, Now: time.Now}, err
}

// NeedLeaderElection is false.
func (s *Site) NeedLeaderElection() bool { return false }

// Start serves the pages until ctx ends.
func (s *Site) Start(ctx context.Context) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", s.address.String())
	if err != nil {
		return err
	}
	return frame.Serve(ctx, l, s.Handler())
}

// Handler answers requests. It knows no other methods than GET and HEAD.
func (s *Site) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", s.page(look.clusters))
	mux.HandleFunc("GET /clusters/{namespace}/{name}", s.page(look.cluster))
	mux.HandleFunc("GET /rolls/{namespace}/{name}", s.page(look.roll))
	mux.HandleFunc("GET /fleets", s.page(look.fleets))
	mux.HandleFunc("GET /fleets/{namespace}/{name}", s.page(look.fleet))
	s.frame.Handle(mux)
	return frame.Guard("", mux)
}

// look is one request.
type look struct {
	*Site
	key client.ObjectKey // of the object that the page is about
	at  time.Time
}

// patience bounds a read: a cache that is not filled yet makes a request wait.
const patience = 10 * time.Second

// page is a handler that draws what view returns, in the template of that name.
func (s *Site) page(view func(look, context.Context) (template string, v frame.View, err error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), patience)
		defer cancel()
		l := look{s, client.ObjectKey{Namespace: r.PathValue("namespace"), Name: r.PathValue("name")}, s.Now()}
		template, v, err := view(l, ctx)
		switch {
		case apierrors.IsNotFound(err):
			s.frame.Missing(w, "there is no such object, or it is not in the cache yet")
		case err != nil:
			s.frame.Render(w, http.StatusServiceUnavailable, "missing", frame.View{Title: "Not read", Body: "the objects in the cache could not be read: " + s.frame.Hide(err.Error())})
		default:
			s.frame.Render(w, http.StatusOK, template, v)
		}
	}
}

// list reads objects, which belong to the cache: a copy of all of them for each page would be most of what
// the operator allocates.
func (l look) list(ctx context.Context, into client.ObjectList, of ...client.ListOption) error {
	return l.objects.List(ctx, into, append(of, client.UnsafeDisableDeepCopy)...)
}

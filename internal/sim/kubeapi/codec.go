package kubeapi

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

const maxBodyBytes = 3 << 20 // the real server's limit

// answer is the result of a request, before it is written.
type answer struct {
	code  int
	body  runtime.Object // sent as JSON or protobuf
	plain string         // text, in place of body
	media string         // content type of plain; "" for text/plain
	watch *watching      // a stream, in place of both

	warnings []string // to the client, beside body
	// program answers in place of the server, at path.
	program http.Handler
	path    string
}

func ok(obj runtime.Object) answer { return answer{code: http.StatusOK, body: obj} }

// failed turns an error into the Status of a real server.
func failed(err error) answer {
	status := apierrors.NewInternalError(err).Status()
	var known apierrors.APIStatus
	if errors.As(err, &known) {
		status = known.Status()
	}
	status.TypeMeta = metav1.TypeMeta{}
	return answer{code: int(status.Code), body: &status}
}

// unstored is the answer to an error of etcd: a Status without a reason (ErrorToAPIStatus
// in apiserver's responsewriters).
func unstored(err error) answer {
	return answer{code: http.StatusInternalServerError, body: &metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Message: err.Error(),
	}}
}

// read returns the request's body, with a limit.
func read(r *http.Request) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r.Body, maxBodyBytes+1))
	if err != nil {
		return nil, apierrors.NewBadRequest("read request body: " + err.Error())
	}
	if len(b) > maxBodyBytes {
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", maxBodyBytes))
	}
	return b, nil
}

// decode reads JSON, YAML or protobuf.
func (s *Server) decode(b []byte, into schema.GroupVersionKind) (runtime.Object, error) {
	obj, _, err := s.codecs.UniversalDeserializer().Decode(b, &into, nil)
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("decode %s: %v", into.Kind, err))
	}
	return obj, nil
}

// decodeObject reads an object of the target's kind.
func (s *Server) decodeObject(b []byte, t target) (store.Object, error) {
	decode := s.decode
	if !s.scheme.Recognizes(t.resource.GVK()) {
		decode = decodeCustom
	}
	decoded, err := decode(b, t.resource.GVK())
	if err != nil {
		return nil, err
	}
	kinds, _, err := s.scheme.ObjectKinds(decoded)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	obj, ok := decoded.(store.Object)
	if !ok || kinds[0] != t.resource.GVK() {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the object provided is a %s, not a %s", kinds[0].Kind, t.resource.Kind))
	}
	complete(obj)
	if t.namespace != "" && obj.GetNamespace() == "" {
		obj.SetNamespace(t.namespace)
	}
	if obj.GetNamespace() != t.namespace {
		return nil, apierrors.NewBadRequest("the namespace of the provided object does not match the namespace sent on the request")
	}
	return obj, nil
}

// serializer chooses JSON if the client accepts it, else protobuf.
func (s *Server) serializer(r *http.Request) (runtime.SerializerInfo, error) {
	accept := r.Header.Get("Accept")
	want := ""
	for part := range strings.SplitSeq(accept, ",") {
		media, params, err := mime.ParseMediaType(strings.TrimSpace(part))
		if err != nil || params["as"] != "" && params["as"] != "Table" {
			continue
		}
		switch media {
		case runtime.ContentTypeJSON, "*/*", "application/*":
			want = runtime.ContentTypeJSON
		case runtime.ContentTypeProtobuf:
			if want == "" {
				want = runtime.ContentTypeProtobuf
			}
		}
	}
	if accept == "" {
		want = runtime.ContentTypeJSON
	}
	info, found := runtime.SerializerInfoForMediaType(s.codecs.SupportedMediaTypes(), want)
	if !found {
		return info, apierrors.NewGenericServerResponse(http.StatusNotAcceptable, "", schema.GroupResource{}, "",
			"only application/json and application/vnd.kubernetes.protobuf are served", 0, false)
	}
	return info, nil
}

// typed is a copy of obj with its kind set.
func (s *Server) typed(obj runtime.Object, gvk schema.GroupVersionKind) runtime.Object {
	obj = obj.DeepCopyObject()
	obj.GetObjectKind().SetGroupVersionKind(gvk)
	return obj
}

// kindOf is the group, version and kind of obj in an answer.
func (s *Server) kindOf(obj runtime.Object) (schema.GroupVersionKind, error) {
	if gvk := obj.GetObjectKind().GroupVersionKind(); !gvk.Empty() {
		return gvk, nil
	}
	switch obj.(type) {
	case *metav1.Status:
		return schema.GroupVersionKind{Version: "v1", Kind: "Status"}, nil
	case *metav1.APIVersions:
		return schema.GroupVersionKind{Version: "v1", Kind: "APIVersions"}, nil
	case *metav1.APIGroupList:
		return schema.GroupVersionKind{Version: "v1", Kind: "APIGroupList"}, nil
	case *metav1.APIGroup:
		return schema.GroupVersionKind{Version: "v1", Kind: "APIGroup"}, nil
	case *metav1.APIResourceList:
		return schema.GroupVersionKind{Version: "v1", Kind: "APIResourceList"}, nil
	}
	gvks, _, err := s.scheme.ObjectKinds(obj)
	if err != nil {
		return schema.GroupVersionKind{}, err
	}
	return gvks[0], nil
}

// write sends the answer.
func (s *Server) write(w http.ResponseWriter, r *http.Request, a answer) {
	switch {
	case a.program != nil:
		passed := r.Clone(r.Context())
		passed.URL.Path, passed.URL.RawPath = a.path, ""
		passed.Header.Del("Authorization") // as the real server's authentication does
		a.program.ServeHTTP(w, passed)
		return
	case a.watch != nil:
		s.stream(w, r, a.watch)
		return
	case a.body == nil:
		w.Header().Set("Content-Type", cmp.Or(a.media, "text/plain; charset=utf-8"))
		w.WriteHeader(a.code)
		_, _ = io.WriteString(w, a.plain) // the client may be gone
		return
	}
	info, err := s.serializer(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotAcceptable)
		return
	}
	if isCustom(a.body) && info.MediaType != runtime.ContentTypeJSON {
		http.Error(w, "custom resources are served as application/json only", http.StatusNotAcceptable)
		return
	}
	gvk, err := s.kindOf(a.body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if status, ok := a.body.(*metav1.Status); ok && status.Details != nil && status.Details.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(status.Details.RetryAfterSeconds)))
	}
	for _, text := range a.warnings {
		if warning, err := utilnet.NewWarningHeader(299, "-", text); err == nil { // it can't be sent otherwise
			w.Header().Add("Warning", warning)
		}
	}
	w.Header().Set("Content-Type", info.MediaType)
	w.WriteHeader(a.code)
	_ = info.Serializer.Encode(s.typed(a.body, gvk), w) // likewise
}

package kubeapi

import (
	"bytes"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// unknownFields are the fields of an object in JSON or YAML that its kind does not have or
// that it has twice, as warnings, or as a strict decoding error if the client wants that.
// A custom resource has no schema here, and a protobuf no field that is unknown.
func (s *Server) unknownFields(r *http.Request, t target, b []byte) (warnings []string, err error) {
	directive, gvk := r.URL.Query().Get("fieldValidation"), t.resource.GVK()
	if directive == metav1.FieldValidationIgnore || !s.scheme.Recognizes(gvk) || bytes.HasPrefix(b, []byte("k8s\x00")) {
		return nil, nil
	}
	media := runtime.ContentTypeYAML
	if bytes.HasPrefix(bytes.TrimSpace(b), []byte("{")) {
		media = runtime.ContentTypeJSON
	}
	info, _ := runtime.SerializerInfoForMediaType(s.codecs.SupportedMediaTypes(), media) // a codec factory has both
	into, err := s.scheme.New(gvk)
	if err != nil {
		return nil, fmt.Errorf("make %s: %w", gvk.Kind, err)
	}
	_, _, err = info.StrictSerializer.Decode(b, &gvk, into)
	strict, is := runtime.AsStrictDecodingError(err)
	switch {
	case !is:
		return nil, nil // other errors are those of decoding it
	case directive == metav1.FieldValidationStrict:
		return nil, err
	}
	for _, e := range strict.Errors() {
		warnings = append(warnings, e.Error())
	}
	return warnings, nil
}

// unknownInObject is unknownFields of an object that a client sends whole
// (transformDecodeError in apiserver's endpoints/handlers/rest.go).
func (s *Server) unknownInObject(r *http.Request, t target, b []byte) (warnings []string, err error) {
	warnings, err = s.unknownFields(r, t, b)
	if err != nil {
		gvk := t.resource.GVK()
		err = apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: %v", gvk.Kind, t.resource.Version, gvk.Kind, err))
	}
	return warnings, err
}

// Package docs carries the API's description, so that the server can hand out the very document that the
// tests check it against. It does nothing else.
package docs

import _ "embed" // for the document below

// OpenAPI is docs/openapi.yaml: OpenAPI 3.1 as YAML in UTF-8. Do not write to it.
//
//go:embed openapi.yaml
var OpenAPI []byte

package api

//go:generate go tool -modfile=../../.ci/tools/go.mod oapi-codegen -config server.config.yaml openapi.yaml
//go:generate go tool -modfile=../../.ci/tools/go.mod oapi-codegen -config client/client.config.yaml -o client/client.gen.go openapi.yaml

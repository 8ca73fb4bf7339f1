FROM golang:1.26-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY . .
# Static, so that it runs where there is no C library.
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 go build -buildvcs=false -trimpath -ldflags='-s -w' -o /out/redrive ./cmd/redrive
# The final image has no shell to make a folder with; 65532 is its user.
RUN mkdir -p /out/data && chown 65532:65532 /out/data

FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /out/redrive /usr/local/bin/redrive
COPY --from=build --chown=65532:65532 /out/data /var/lib/redrive
ENV REDRIVE_DATA_DIR=/var/lib/redrive \
    REDRIVE_HTTP_LISTEN=:8080
# Archives of pruned messages go here, unless they go to a bucket.
VOLUME /var/lib/redrive
EXPOSE 8080
# serve stops within 15 s of SIGTERM.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["/usr/local/bin/redrive", "check", "ready", "http://127.0.0.1:8080/readyz"]
ENTRYPOINT ["/usr/local/bin/redrive"]
CMD ["serve"]

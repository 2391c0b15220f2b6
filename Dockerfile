# The image for `python train.py kubernetes`, with the locked requirements. Build it at the top of the checkout:
#   docker build -t registry.example/steadfast:1 .
# With optional requirements, such as the clients of object stores: --build-arg EXTRAS="s3 gcs".
# For GPUs the base must also have Python 3.11, CUDA and cuDNN: add --build-arg BASE=<image>.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /build
RUN python3 -m venv /opt/steadfast
ENV PATH=/opt/steadfast/bin:${PATH}
COPY requirements-build.lock requirements.lock pyproject.toml ./
# The pip of the lock: an older one takes no hashes from constraints.
RUN sed -n '/^pip==/,/[^\\]$/p' requirements.lock > pip.txt \
 && pip install --require-hashes -r pip.txt
# What is needed to train, in the versions and with the hashes of the lock, which also has the tools of developers.
ARG EXTRAS=""
RUN python -c "import os, tomllib; project = tomllib.load(open('pyproject.toml', 'rb'))['project']; extras = os.environ['EXTRAS'].split(); print(*project['dependencies'], *(line for extra in extras for line in project['optional-dependencies'][extra]), sep='\n')" > needed.txt \
 && pip install --require-hashes -r requirements-build.lock \
 && pip install --require-hashes --no-build-isolation -r needed.txt -c requirements.lock
COPY LICENSE README.md ./
COPY trainer trainer
COPY models models
COPY datasets datasets
COPY conf conf
RUN pip install --no-deps --no-build-isolation . \
 && pip check

FROM ${BASE}
RUN useradd --uid 1000 --user-group --create-home steadfast
COPY --from=build /opt/steadfast /opt/steadfast
ENV PATH=/opt/steadfast/bin:${PATH} PYTHONUNBUFFERED=1
# A number: Kubernetes must see that it is not root.
USER 1000:1000
WORKDIR /home/steadfast
# In this form, without a shell, the program itself is process 1 and gets SIGTERM.
ENTRYPOINT ["steadfast"]
